"""The options of tool-filesystem."""

from __future__ import annotations

import attrs

from ..._shared.configuration import choices, flag, option, seconds, texts, whole_number
from .._paths import DEFAULT_IGNORED, directory_names

READING_TOOLS = ("read_file", "list_directory", "glob")
WRITING_TOOLS = ("write_file", "edit_file")


@attrs.frozen(kw_only=True)
class FilesystemOptions:
    """What the tools may touch, and how much one call may read, write and return.

    Attributes:
        allowed_paths: The roots; the session's working directory if absent.
        writable_paths: The roots below which files may be written; all of them if absent.
        read_only: Nothing may be written.
        tools: The tools to mount; all that are useful if absent.
        max_read_bytes: Of one text.
        max_write_bytes: Of one file.
        max_entries: Of one listing.
        max_results: Of one glob.
        images: Whether images are returned as content blocks.
        max_image_bytes: Of one image.
        ignore: Directories that glob does not enter.
        timeout: Seconds for one call.
        threads: Calls at the same time.
    """

    allowed_paths: tuple[str, ...] | None = option(texts(least=1), default=None, restricts=True)
    writable_paths: tuple[str, ...] | None = option(texts(), default=None, restricts=True)
    read_only: bool = option(flag, default=False, restricts=True)
    tools: tuple[str, ...] | None = option(choices(*READING_TOOLS, *WRITING_TOOLS), default=None, restricts=True)
    max_read_bytes: int = option(whole_number(1), default=256 << 10)
    max_write_bytes: int = option(whole_number(1), default=10 << 20)
    max_entries: int = option(whole_number(1), default=1000)
    max_results: int = option(whole_number(1), default=1000)
    images: bool = option(flag, default=False)
    max_image_bytes: int = option(whole_number(1), default=5 << 20)
    ignore: frozenset[str] = option(directory_names, default=DEFAULT_IGNORED)
    timeout: float = option(seconds, default=30.0)
    threads: int = option(whole_number(1), default=4)
