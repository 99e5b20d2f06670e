"""The tool web_fetch, which returns the text of one page."""

from __future__ import annotations

import functools
import importlib.util
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import anyio.to_thread

from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, PlanError
from amplifier.models import ToolResult

from ..._shared.configuration import option, read_options
from ..._shared.failure import ToolFailure, shown
from ..._shared.worker_threads import Stop, Workers
from .._base import BuiltinTool, characters, flag, tool_input, whole
from ._html_to_text import readable
from ._urls import WebOptions

if TYPE_CHECKING:
    from ._fetcher import Fetched, Fetcher

_SNIFFED = 1024
_SHOWN_OF_AN_ERROR = 2000


class WebFetchTool(BuiltinTool):
    """The tool that fetches pages.

    Args:
        make_fetcher: Makes the fetcher. It runs in a thread, because it imports packages and reads
            certificates.
        options: The configuration.
    """

    _name = "web_fetch"
    repeatable: ClassVar[bool | None] = True
    _description = (
        "Fetch a page of the public web with GET and return it as text: HTML without its markup, "
        "JSON and other text as they are. Only http and https; no private addresses, logins or "
        "binary files. Of a long page a part is returned; ask for more with offset."
    )
    _input = tool_input(
        url=option(characters(1, 8192), doc="The whole URL."),
        offset=option(whole(0, 100_000_000), 0, "The character of the text to begin with."),
        limit=option(
            whole(1, 1_000_000),
            None,
            "Maximum number of characters to return, up to the limit of this session.",
        ),
        raw=option(flag, False, "Keep the markup of HTML."),
    )

    def __init__(self, make_fetcher: Callable[[], Fetcher], options: WebOptions) -> None:
        self._make_fetcher = make_fetcher
        self._workers = Workers()
        self._max_chars = options.max_chars

    def _subject(self, values: dict[str, Any]) -> str:
        return shown(ascii(values.get("url", "")), 200)

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        fetcher = await anyio.to_thread.run_sync(self._make_fetcher)
        fetched = await fetcher.fetch(values["url"])
        output: dict[str, Any] = {
            "url": shown(fetched.url, 9000),
            "status": fetched.status,
            "content_type": shown(fetched.content_type),
        }
        if fetched.hops:
            output["redirected_from"] = [shown(hop, 9000) for hop in fetched.hops]
        if fetched.body is None or (b"\0" in fetched.body[:_SNIFFED] and not _is_utf16(fetched)):
            kind = shown(fetched.content_type, 80) or "binary data"
            failure = ToolFailure(
                "UnsupportedContent", f"HTTP {fetched.status} with {kind}, which is not text"
            )
            return self._failed(failure, output)
        title, text = await self._workers.run(
            lambda stop: _text(fetched, raw=values["raw"], stop=stop),
            label=f"web_fetch {self._subject(values)}",
        )
        if title:
            output["title"] = shown(title)
        is_error = not 200 <= fetched.status < 300
        limit = (
            _SHOWN_OF_AN_ERROR
            if is_error
            else min(values.get("limit", self._max_chars), self._max_chars)
        )
        self._cut(output, text, values["offset"], limit, is_full=fetched.is_full)
        if is_error:
            return self._failed(
                ToolFailure("HTTPStatus", f"the server answered HTTP {fetched.status}"), output
            )
        return ToolResult(output=output)

    def _cut(
        self, output: dict[str, Any], text: str, offset: int, limit: int, *, is_full: bool
    ) -> None:
        part = text[offset : offset + limit]
        output |= {"content": part, "offset": offset, "total_chars": len(text)}
        output["truncated"] = is_full or len(part) < len(text)
        notes = []
        if offset + limit < len(text):
            notes.append(f"there is more from offset {offset + limit} on")
        if is_full:
            notes.append("the page is larger than this session reads; the rest is unknown")
        if notes:
            output["note"] = "; ".join(notes)


def _is_utf16(fetched: Fetched) -> bool:
    assert fetched.body is not None
    return "utf-16" in fetched.content_type.lower() or fetched.body.startswith(
        (b"\xff\xfe", b"\xfe\xff")
    )


def _text(fetched: Fetched, *, raw: bool, stop: Stop) -> tuple[str, str]:
    """Return the title and the text of a page."""
    text = fetched.text().removeprefix("\ufeff")
    name = fetched.content_type.partition(";")[0].strip().lower()
    looks_like_html = not name and text[:_SNIFFED].lstrip()[:9].lower().startswith(
        ("<!doctype", "<html")
    )
    if not raw and (looks_like_html or name in ("text/html", "application/xhtml+xml")):
        return readable(text, fetched.url, stop.check)
    return "", text


_MODULE = "tool-web"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount web_fetch.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `WebOptions`.

    Raises:
        PlanError: The config is invalid.
        MissingExtraError: The HTTP packages aren't installed.
    """
    options = await anyio.to_thread.run_sync(read_options, WebOptions, _MODULE, config)
    _check_packages()
    # A session that fetches nothing doesn't wait for the imports.
    make_fetcher = functools.cache(functools.partial(_make_fetcher, options))
    if options.ca_file is not None:
        await anyio.to_thread.run_sync(make_fetcher)
    await coordinator.mount("tools", WebFetchTool(make_fetcher, options))


def _check_packages() -> None:
    for name in ("httpcore2", "httpx2", "truststore"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(_MODULE, extra="providers", missing=name)


def _make_fetcher(options: WebOptions) -> Fetcher:
    """Make the fetcher. This blocks while the extra is imported and certificates are read."""
    import truststore  # noqa: PLC0415 — an extra

    from . import _fetcher  # noqa: PLC0415 — it imports the rest

    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ca_file is not None:
        try:
            context.load_verify_locations(cafile=options.ca_file)
        except OSError as error:
            problem = (
                "$.ca_file",
                f"no certificates can be read from it: {error.strerror or error}",
            )
            raise PlanError([problem], subject=f"invalid config of {_MODULE}") from error
    return _fetcher.Fetcher(options, context)
