"""Protects: paths and methods are those of the document; what is not there says what is."""

from __future__ import annotations

from tests.server.http_calls import USER, client_for
from tests.server.scripted import ScriptedEngine


async def test_paths_and_methods_are_those_of_the_document() -> None:
    async with client_for(ScriptedEngine()) as client:
        slash = await client.post("/v1/chat/completions/", json={"messages": USER})
        models = await client.post("/v1/models", json={})
        chat = await client.get("/v1/chat/completions")
    assert slash.status_code == 404
    assert (models.status_code, models.headers["allow"]) == (405, "GET, HEAD")
    assert (chat.status_code, chat.headers["allow"]) == (405, "POST")


async def test_a_route_that_is_not_there_is_none_with_an_id() -> None:
    """Clients probe for routes such as POST /v1/responses/NAME, and look for a 404."""
    async with client_for(ScriptedEngine()) as client:
        for method, path in (("POST", "/v1/responses/search"), ("PUT", "/v1/models/x")):
            answer = await client.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "not_found")
            assert f"{method} {path}" in error["message"]
            assert "GET" in answer.headers["allow"]  # what else the path takes
        spelt_out = await client.put("/v1/responses/compact")
    assert (spelt_out.status_code, spelt_out.headers["allow"]) == (405, "POST")
