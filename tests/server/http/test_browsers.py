"""Web pages may call the server if their origin was named, and only then."""

from __future__ import annotations

import httpx
import pytest

from tests.server.http_calls import USER, client_for
from tests.server.scripted import ScriptedEngine
from twostroke.core.errors import ConfigError
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.options import GatewayOptions
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions

PAGE, STRANGER = "https://chat.example.org", "https://evil.example.org"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def test_a_page_that_was_named() -> None:
    async with client_for(ScriptedEngine(), allowed_origins=(PAGE,)) as client:
        may = await client.options("/v1/chat/completions", headers={"origin": PAGE, **PREFLIGHT})
        body = {"messages": USER, "stream": True}
        answer = await client.post("/v1/chat/completions", json=body, headers={"origin": PAGE})
        error = await client.post("/v1/chat/completions", json={}, headers={"origin": PAGE})
        strange = await client.options(
            "/v1/chat/completions", headers={"origin": STRANGER, **PREFLIGHT}
        )
    assert may.status_code == 200
    assert may.headers["access-control-allow-headers"] == "authorization,content-type"
    assert (answer.status_code, error.status_code) == (200, 400)
    for response in (may, answer, error):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["x-request-id"]
    assert "x-ratelimit-remaining-tokens" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in strange.headers


async def test_whether_one_may_ask_with_a_key_is_asked_without_it() -> None:
    gateway = Gateway(GatewayOptions(api_key=("sk-secret",)))
    app = create_app(
        ScriptedEngine().loaded_model(), ServerOptions(allowed_origins=("*",)), gateway
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:
        may = await client.options("/v1/completions", headers={"origin": STRANGER, **PREFLIGHT})
        refused = await client.post(
            "/v1/completions", json={"prompt": "x"}, headers={"origin": STRANGER}
        )
    assert (may.status_code, refused.status_code) == (200, 401)
    # Without it the page would see a network error instead of what is wrong.
    assert refused.headers["access-control-allow-origin"] == "*"


async def test_by_default_no_page_may() -> None:
    async with client_for(ScriptedEngine()) as client:
        may = await client.options("/v1/completions", headers={"origin": PAGE, **PREFLIGHT})
        answer = await client.post(
            "/v1/completions", json={"prompt": "x"}, headers={"origin": PAGE}
        )
    assert may.status_code == 405
    assert "access-control-allow-origin" not in may.headers.keys() | answer.headers.keys()


@pytest.mark.parametrize("origin", ["chat.example.org", "https://chat.example.org/", "", "null"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-origins must be such as"):
        ServerOptions(allowed_origins=(origin,))
