"""tool-web over real servers: what is fetched, what is bounded, and that it keeps the tool contract."""

from __future__ import annotations

import gzip
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from amplifier import AmplifierSession
from amplifier.errors import MissingExtraError, PlanError
from amplifier.modules.tools import web as tool_web
from amplifier.modules.tools.web._html_to_text import readable
from amplifier.testing import MODES, MockProvider, cancel_everywhere
from tests.modules.tools.test_tool_filesystem import Desk

PAGE = b"""<!doctype html><html><head><title>A &amp; B</title><style>p{}</style><script>var x = "<p>no</p>";</script></head>
<body><h1>Head</h1><p>One <b>two</b>
three.<br>four <a href="/five?x=1&amp;y=2">five</a><ul><li>six<li>seven</ul><table><tr><td>8<td>9</table>
<pre>  ten
    eleven</pre><!-- never --><img alt="twelve" src=x><a href="javascript:no()">thirteen</a></body></html>"""
TEXT = """# Head

One two three.
four [five](http://HOST/five?x=1&y=2)
- six
- seven

8 | 9

  ten
    eleven

[image: twelve] thirteen"""


class Site:
    """A real server whose answers are written as bytes by functions of the path."""

    def __init__(self) -> None:
        self.pages: dict[str, Callable[[Site, Any], None]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        self.closing = threading.Event()
        self.place = self.url = ""

    def serve(
        self,
        path: str,
        body: bytes = b"",
        content_type: str = "text/plain",
        status: int = 200,
        **headers: str,
    ) -> None:
        def answer(site: Site, handler: Any) -> None:
            handler.send_response(status)
            if content_type:
                handler.send_header("Content-Type", content_type)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        self.pages[path] = answer

    @contextmanager
    def running(
        self, context: ssl.SSLContext | None = None, *, threads: bool = True
    ) -> Iterator[int]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append((self.path, dict(self.headers)))
                with suppress(OSError):
                    site.pages[self.path](site, self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer if threads else HTTPServer):  # type: ignore[misc]
            def handle_error(self, *args: Any) -> None:  # a client that goes away is no error here
                pass

        server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_address[1]
        self.place, self.url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"
        try:
            yield port
        finally:
            self.closing.set()
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with made.running():
        yield made


async def opened(site: Site, **config: Any) -> Desk:
    return await Desk.open(None, tool_web, allow_private=[site.place], **config)


async def page_of(site: Site, **config: Any) -> Any:
    """What is fetched of the page at the top of a site."""
    return await (await opened(site, **config)).get("web_fetch", url=site.url)


async def failure_of(site: Site, **config: Any) -> tuple[str, str]:
    """What goes wrong when that page is fetched: kind and message."""
    return await (await opened(site, **config)).fail("web_fetch", url=site.url)


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


async def test_file_without_certificates_is_config_problem(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(PlanError, match=r"\$\.ca_file: no certificates can be read"):
        await Desk.open(None, tool_web, ca_file=str(tmp_path / "ca.pem"))


async def test_missing_client_names_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("amplifier.modules.tools.web._")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(tool_web, "_fetcher", raising=False)
    monkeypatch.delattr(tool_web, "_urls", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtraError, match=r"amplifier\[providers\]"):
        await Desk.open(None, tool_web)


# ── what is fetched ──────────────────────────────────────────────────────────────────────────────


async def test_page_is_returned_as_text(site):
    site.serve("/", PAGE, "text/html; charset=utf-8")
    desk = await opened(site)
    output = await desk.get("web_fetch", url=f"{site.url}#part")
    text = TEXT.replace("HOST", site.place)
    assert output == {
        "url": site.url,
        "status": 200,
        "content_type": "text/html; charset=utf-8",
        "title": "A & B",
        "content": text,
        "offset": 0,
        "total_chars": len(text),
        "truncated": False,
    }
    raw = await desk.get("web_fetch", url=site.url, raw=True)
    assert raw["content"] == PAGE.decode()


async def test_request_does_not_identify_agent(site, monkeypatch):
    site.serve("/", status=302, Location="/page", Set_Cookie="a=b")
    site.serve("/page", b"x", Set_Cookie="c=d")
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", __file__)
    desk = await opened(site)
    for _ in range(2):
        await desk.get("web_fetch", url=site.url)
    assert [path for path, _ in site.requests] == ["/", "/page"] * 2
    for _, headers in site.requests:
        assert {name.lower() for name in headers} == {
            "host",
            "user-agent",
            "accept",
            "accept-encoding",
            "connection",
        }
        assert headers["Host"] == site.place


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_and_reported(site, status):
    site.serve("/a/b", status=status, Location="../c?x=y#z")
    site.serve("/c?x=y", b"here")
    desk = await opened(site)
    output = await desk.get("web_fetch", url=f"{site.url}a/b")
    assert output["url"] == f"{site.url}c?x=y"
    assert output["redirected_from"] == [f"{site.url}a/b"]
    assert output["content"] == "here"


async def test_endless_redirects_are_stopped(site):
    site.serve("/", status=302, Location="/")
    assert (await failure_of(site, max_redirects=3))[0] == "TooManyRedirects"
    assert len(site.requests) == 4


async def test_failure_status_keeps_some_text(site):
    site.serve("/", b"<h1>gone</h1>" + b"x" * 9000, "text/html", status=404)
    desk = await opened(site)
    result = await desk.call("web_fetch", url=site.url)
    assert result.error == {"message": "the server answered HTTP 404", "type": "HTTPStatus"}
    assert result.output["content"].startswith("# gone")
    assert len(result.output["content"]) == 2000


async def test_long_page_is_read_in_parts(site):
    site.serve("/", "".join(chr(0x4E00 + n) for n in range(1000)).encode())
    desk = await opened(site, max_chars=400)
    parts, offset = [], 0
    while True:
        output = await desk.get("web_fetch", url=site.url, offset=offset, limit=900)
        parts.append(output["content"])
        assert output["total_chars"] == 1000
        if "note" not in output:
            break
        offset += 400
        assert output["note"] == f"there is more from offset {offset} on"
    assert "".join(parts) == "".join(chr(0x4E00 + n) for n in range(1000))
    assert (await desk.get("web_fetch", url=site.url, limit=3))["content"] == "一丁丂"


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a":[1]}', '{"a":[1]}'),
        ("application/json", b'"\\ud800"', '"\\ud800"'),
        ("application/ld+json; x=y", b"{}", "{}"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("text/plain; charset=iso-8859-1", b"\xe9\x80", "é€"),
        ("text/plain; charset=nonsense", "é".encode(), "é"),
        ("text/plain; charset=idna", b"x" * 9, "x" * 9),
        ("text/plain; charset=rot13", b"x", "x"),
        ("text/plain", b"\xff\xfeh\0i\0", "hi"),
        ("text/plain", b"\xef\xbb\xbfhi", "hi"),
        ("text/plain; charset=utf-16le", b"h\0i\0", "hi"),
        ("text/plain; charset=shift_jis", "日本".encode("shift_jis"), "日本"),
        ("text/html", b"<meta charset='windows-1251'>" + "да".encode("cp1251"), "да"),
        ("text/plain", b"\xff ok", "\N{REPLACEMENT CHARACTER} ok"),
        ("", b"<!doctype html><p>yes", "yes"),
        ("", b"plain <b>", "plain <b>"),
        ("application/octet-stream", b"text after all", "text after all"),
        ("text/plain", b"", ""),
    ],
)
async def test_text_of_any_type_and_encoding(site, content_type, body, expected):
    site.serve("/", body, content_type)
    assert (await page_of(site))["content"] == expected


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("image/png", b"\x89PNG"),
        ("application/pdf", b"%PDF"),
        ("application/zip", b"PK"),
        ("", b"\0\1"),
        ("text/plain", b"a\0b"),
    ],
)
async def test_non_text_is_refused(site, content_type, body):
    site.serve("/", body, content_type)
    kind, message = await failure_of(site)
    assert kind == "UnsupportedContent"
    assert "which is not text" in message


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def endless(site: Site, handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain")
    handler.end_headers()
    while not site.closing.is_set():
        site.sent += handler.wfile.write(b"x" * 65536)


async def test_redirect_body_is_not_read(site):
    def redirect(site: Site, handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /here\r\n\r\n")
        while not site.closing.is_set():
            site.sent += handler.wfile.write(b"x" * 65536)

    site.pages["/"] = redirect
    site.serve("/here", b"here")
    assert (await page_of(site))["content"] == "here"
    assert site.sent < 20_000_000


async def test_endless_body_is_cut_at_limit(site):
    site.pages["/"] = endless
    output = await page_of(site, max_bytes=100_000, max_chars=1_000_000)
    assert output["total_chars"] == 100_000
    assert output["truncated"] is True
    assert "larger than this session reads" in output["note"]
    assert (
        site.sent < 20_000_000
    )  # what fits into the buffers of two sockets; it would be endless otherwise


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
async def test_bomb_is_not_unpacked_beyond_limit(site, encoding):
    bomb = gzip.compress(b"\0x" * 10_000_000)
    site.serve("/", bomb, "text/plain; charset=utf-16le", Content_Encoding=encoding)
    output = await page_of(site, max_bytes=100_000)
    assert output["total_chars"] == 50_000
    assert output["truncated"] is True


async def test_padding_behind_gzip_is_ignored(site):
    site.serve("/", gzip.compress(b"fine") + bytes(522), Content_Encoding="gzip")
    assert (await page_of(site))["content"] == "fine"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"x"), ("gzip, gzip", b"x"), ("deflate", b"x"), ("gzip", b"not gzip")],
)
async def test_other_compression_is_refused(site, encoding, body):
    site.serve("/", body, Content_Encoding=encoding)
    assert (await failure_of(site))[0] == "UnsupportedContent"


def silent(site: Site, handler: Any) -> None:
    site.closing.wait(20)


def dripping(site: Site, handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain")
    handler.end_headers()
    while not site.closing.wait(0.02):
        handler.wfile.write(b"x")


def dripping_headers(site: Site, handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not site.closing.wait(0.02):
        handler.wfile.write(b"X-A: b\r\n")


@pytest.mark.parametrize("page", [silent, dripping, dripping_headers])
async def test_slow_server_gets_remaining_time_only(site, page):
    site.pages["/"] = page
    with anyio.fail_after(60):
        kind, message = await failure_of(site, timeout=0.4)
    assert kind == "Timeout"
    assert "0.4 s" in message or "in time" in message


def broken(site: Site, handler: Any) -> None:
    handler.wfile.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf"
    )


def nonsense(site: Site, handler: Any) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n\0\0\0")


def endless_headers(site: Site, handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not site.closing.is_set():
        handler.wfile.write(b"X-A: " + b"b" * 60000 + b"\r\n")


@pytest.mark.parametrize("page", [broken, nonsense, endless_headers, lambda site, handler: None])
async def test_invalid_response_is_failure(site, page):
    site.pages["/"] = page
    assert (await failure_of(site))[0] == "ConnectionFailed"


async def test_closed_port_is_failure():
    site = Site()
    with site.running():
        pass
    assert (await failure_of(site))[0] == "ConnectionFailed"


# ── certificates ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def secure(
    authority: trustme.CA, folder: Path, port: int, name: str = "localhost", *, trust: bool = True
) -> Desk:
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trusted = {"ca_file": str(folder / "ca.pem")} if trust else {}
    return await Desk.open(None, tool_web, allow_private=[f"{name}:{port}"], **trusted)


async def test_certificate_of_name_is_accepted(authority, tmp_path):
    pages = Site()
    pages.serve("/", b"safe")
    seen: list[str | None] = []
    context = server_context(authority, "localhost")
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    with pages.running(context) as port:
        desk = await secure(authority, tmp_path, port)
        assert (await desk.get("web_fetch", url=f"https://localhost:{port}/"))["content"] == "safe"
    assert seen == ["localhost"]  # though the connection went to an address
    assert pages.requests[0][1]["Host"] == f"localhost:{port}"


@pytest.mark.parametrize(
    ("names", "trust"),
    [
        pytest.param(["elsewhere.example"], True, id="another name"),
        pytest.param(["127.0.0.1"], True, id="the address instead of the name"),
        pytest.param(["localhost"], False, id="an untrusted authority"),
    ],
)
async def test_unfitting_certificate_is_refused(authority, tmp_path, names, trust):
    pages = Site()
    pages.serve("/", b"unsafe")
    with pages.running(server_context(authority, *names)) as port:
        desk = await secure(authority, tmp_path, port, trust=trust)
        kind, message = await desk.fail("web_fetch", url=f"https://localhost:{port}/")
    assert kind == "CertificateError"
    assert message.startswith("localhost: ")
    assert pages.requests == []


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<b>b</b>c <i> d </i>e", "abc d e"),
        ("<p>a<p>b<div>c</div>d", "a\n\nb\nc\nd"),
        ("1 < 2 && 3 > 2", "1 < 2 && 3 > 2"),
        (
            "&lt;b&gt; &eacute; &#233; &#xe9; &nope; &#xD800;",
            "<b> é é é &nope; \N{REPLACEMENT CHARACTER}",
        ),
        ("&#" + "9" * 5000 + ";", "\N{REPLACEMENT CHARACTER}"),
        ("<script>a</script >b<style>c</STYLE>d", "bd"),
        ("a<script>b", "a"),
        ("a<noscript>b", "ab"),
        ("a<noscript>b</noscript>c", "ac"),
        ("<!-- a -->b<!-- c", "b"),
        ("<a href='/x'>y</a>z", "[y](http://h/x)z"),
        ("<a href=/x>y</a>", "[y](http://h/x)"),
        ("<a href='//o/x'>y</a>", "[y](http://o/x)"),
        ("<a href='#x'>y</a><a href='mailto:a@b'>m</a>", "ym"),
        ("<a href='http://[x'>y</a>", "y"),
        ("<a href='/x'></a>y", "y"),
        ("<a href='/x'>y", "[y](http://h/x)"),
        ('<img alt="a&quot;b">', '[image: a"b]'),
        ("<p title='a>b'>c", "c"),
        ("<p title='a>b", "b"),
        ("a<", "a<"),
        ("<>a</>b", "<>ab"),
        ("<a", ""),
        ("", ""),
        ("a\xa0 \t\n b", "a b"),
        ("<pre>a\n\n\n\n  b</pre>", "a\n\n  b"),
        ("<h2>a</h2>b<h6>c</h6>", "## a\n\nb\n\n###### c"),
        ("a<br>b<br/>c", "a\nb\nc"),
    ],
)
def test_html_reads_well(page, text):
    assert readable(page, "http://h/", lambda: None)[1] == text


WORST = (
    "<a ",
    "<a b='",
    '<a b="',
    "<",
    "</",
    "</a ",
    "<!--",
    "<!",
    "<?",
    "<svg>",
    "<svg",
    "<script>x</",
    "&",
    "&#",
    "&a",
    "<a href=",
    "a=",
    "<pre>",
    "<a href='/'>",
    "'\"<b ",
    "<p>\n",
    "<title>",
)


@pytest.mark.parametrize("unit", WORST)
def test_no_page_takes_long(unit):
    """Counted in looks at the page, because wall time depends on the machine: a quadratic reader never ends with these."""
    readable(unit * (200_000 // len(unit)), "http://h/", lambda: None)
    readable("<a " + "x-" * 100_000 + unit, "http://h/", lambda: None)
    assert readable("<p>" + unit * 10, "http://h/", lambda: None) is not None


@given(
    page=st.lists(
        st.sampled_from([*WORST, "x", " ", ">", "'>", '">', "</p>", "-->", "</script>"]),
        max_size=30,
    ).map("".join)
)
def test_any_page_becomes_text(page):
    title, text = readable(page, "http://h/", lambda: None)
    json.dumps([title, text]).encode()
    assert "\n\n\n" not in text
    assert text == text.strip()


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow  # over TLS; the sweep of a whole session below is not
@pytest.mark.parametrize("mode", ["trio", "asyncio-scope", "asyncio-native"])
def test_fetch_cancelled_anywhere_leaves_nothing(authority, tmp_path, mode):
    pages = Site()
    pages.serve("/", status=302, Location="/page")
    pages.serve("/page", gzip.compress(PAGE), "text/html", Content_Encoding="gzip")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    # New threads of the server would be taken for the tool's.
    with pages.running(server_context(authority, "localhost"), threads=False) as port:

        def make() -> Any:
            async def scenario() -> None:
                config = {
                    "allow_private": [f"localhost:{port}"],
                    "ca_file": str(tmp_path / "ca.pem"),
                }
                desk = await Desk.open(None, tool_web, **config)
                await desk.get("web_fetch", url=f"https://localhost:{port}/")

            return scenario

        report = cancel_everywhere(make, modes=[mode], clock="real", max_points=25)
    report.raise_if_broken()
    assert report.points[mode] >= 5


@pytest.mark.parametrize("mode", MODES)
def test_session_cancelled_during_fetch_leaves_nothing(mode):
    pages = Site()
    pages.serve("/", PAGE, "text/html")
    with pages.running(threads=False) as port:

        def make() -> Any:
            provider = MockProvider([[("web_fetch", {"url": f"http://127.0.0.1:{port}/"})], "done"])

            plan = {
                "session": {
                    "orchestrator": "loop-basic",
                    "context": "context-simple",
                    "strict": True,
                },
                "providers": [provider],
                "tools": [
                    {"module": "tool-web", "config": {"allow_private": [f"127.0.0.1:{port}"]}}
                ],
            }

            async def scenario() -> None:
                async with AmplifierSession(plan) as session:
                    await session.execute("go")

            return scenario

        report = cancel_everywhere(make, modes=[mode], clock="real", second_after=(1, 3))
    report.raise_if_broken()
    assert report.points[mode] >= 5


async def test_cancelled_fetch_leaves_dripping_server(site):
    asked, gone = threading.Event(), threading.Event()

    def watch(site: Site, handler: Any) -> None:
        asked.set()
        try:
            dripping(site, handler)
        except OSError:
            gone.set()

    site.pages["/"] = watch
    desk = await opened(site)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: desk.get("web_fetch", url=site.url))
        assert await anyio.to_thread.run_sync(asked.wait, 60)
        assert not gone.is_set()
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(gone.wait, 60)
