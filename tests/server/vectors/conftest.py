"""What the tests of vectors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.vectors.vector_server import vector_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a model that knows prompts for kinds of texts."""
    with vector_server(tmp_path_factory.mktemp("model"), prompts=True) as url:
        yield url
