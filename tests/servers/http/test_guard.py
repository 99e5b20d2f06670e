"""Who may use the server: host, origin, token; and what every response carries."""

from __future__ import annotations

import pytest

from amplifier.servers.http import application
from tests.servers.http._asgi_client import TOKEN, Factory, serving

PATHS = ["/v1/models", "/api/sessions", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xfc"],
)
async def test_request_without_token_is_refused(path, authorization):
    async with serving() as client:
        answer = await client.ask("GET", path, authorization=authorization)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert TOKEN not in answer.error


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({}, {"authorization": f"bearer {TOKEN}"}),  # the name of the scheme is not case-sensitive
        ({"token": None}, {"authorization": None}),
        ({}, {"origin": "http://127.0.0.1:8642"}),
        *(
            ({}, {"host": host})
            for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]", "[::1]:8642")
        ),
    ],
)
async def test_local_request_with_token_is_accepted(options, headers):
    async with serving(**options) as client:
        assert (await client.ask("GET", "/v1/models", **headers)).status == 200


@pytest.mark.parametrize("token", ["", "short", "with spaces in it, long", "ümläüte-are-not-ascii"])
def test_invalid_token_is_refused(token):
    with pytest.raises(ValueError, match="at least 16 printable ASCII"):
        application(Factory(), token=token)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "[::2]:80",
    ],
)
async def test_request_for_other_host_is_refused(host):
    async with serving() as client:
        for path in (
            "/",
            "/v1/models",
        ):  # rebinding would give a page of another site the chat page, too
            answer = await client.ask("GET", path, host=host)
            assert (answer.status, answer.json()["error"]["code"]) == (403, "wrong_host")


async def test_other_names_can_be_allowed():
    async with serving(hosts=["agent.example"]) as client:
        assert (await client.ask("GET", "/v1/models", host="agent.example:80")).status == 200
        assert (await client.ask("GET", "/v1/models", host="127.0.0.1")).status == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1"]
)
async def test_page_of_other_site_is_refused(origin):
    async with serving() as client:
        answer = await client.ask("GET", "/v1/models", origin=origin)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "wrong_origin")
        preflight = await client.ask(
            "OPTIONS", "/v1/models", origin=origin, access_control_request_method="POST"
        )
        assert preflight.status == 403
        assert not any(name.startswith("access-control") for name in preflight.headers)


async def test_cross_site_request_without_origin_is_refused():
    """Unless a person follows a link."""
    async with serving() as client:
        answer = await client.ask(
            "GET", "/v1/models", sec_fetch_site="cross-site", sec_fetch_mode="no-cors"
        )
        assert answer.status == 403
        answer = await client.ask(
            "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate"
        )
        assert answer.status == 200


async def test_allowed_origin_gets_browser_permission():
    site = "https://chat.example"
    async with serving(origins=[site]) as client:
        answer = await client.ask("GET", "/v1/models", origin=site)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, site)
        preflight = await client.ask(
            "OPTIONS",
            "/v1/models",
            origin=site,
            access_control_request_method="POST",
            authorization=None,
        )
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, site)
        other = await client.ask("GET", "/v1/models", origin="https://evil.example")
        assert other.status == 403


async def test_page_needs_no_token_or_remote_resources():
    async with serving() as client:
        for path, kind in [
            ("/", "text/html"),
            ("/chat.js", "text/javascript"),
            ("/chat.css", "text/css"),
        ]:
            answer = await client.ask("GET", path, authorization=None)
            assert answer.status == 200
            assert answer.headers["content-type"].startswith(kind)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert b"http://" not in answer.body
            assert b"https://" not in answer.body
            assert b"innerHTML" not in answer.body


async def test_responses_have_security_headers():
    async with serving() as client:
        for path in ("/", "/v1/models", "/nowhere"):
            answer = await client.ask("GET", path)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"


async def test_unknown_route_is_answered_with_reason():
    async with serving() as client:
        answer = await client.ask("GET", "/nowhere")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "unknown_route")
        answer = await client.ask("PUT", "/api/sessions")
        assert answer.status == 405
        assert "PUT is not possible" in answer.error
