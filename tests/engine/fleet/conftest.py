"""Replicas of these tests are scripted engines, as in ``tests/engine/process``."""

from tests.engine.process.conftest import scripted, watchers_end

__all__ = ["scripted", "watchers_end"]
