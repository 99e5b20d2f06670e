"""Files of the working directory that the agent starts or imports when it begins: its plan names them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_CODE: Final = re.compile(
    r"\.(?:py[wz]?|[cm]?[jt]s|[jt]sx|sh|bash|zsh|fish|rb|pl|php|lua|jar|ps1|exs?|go|rs|wasm)", re.I
)
_INTERPRETER: Final = re.compile(
    r"(?:python|pypy|node|nodejs|bun|deno|ruby|perl|php|lua|sh|bash|zsh|dash|ksh|fish|tsx|ts-node|uv)[\d.]*"
)
_PACKAGES: Final = "node_modules"


def started_places(config: object, directory: str) -> tuple[str, ...]:
    """Return the files and folders that a plan makes the agent run, as absolute paths; they need not exist.

    Args:
        config: The plan, or a part of it.
        directory: The working directory.
    """
    found: dict[str, None] = {}
    for path in _named(config, directory):
        found |= dict.fromkeys((os.path.abspath(path), os.path.realpath(path)))  # noqa: PTH100 - text in
    # Of a folder around the working directory, not everything can be protected.
    folders = (os.path.abspath(directory), os.path.realpath(directory))  # noqa: PTH100 - text in
    return tuple(
        path
        for path in found
        if not any(f"{folder}/".startswith(f"{path.rstrip('/')}/") for folder in folders)
    )


def _named(value: object, directory: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        module, source = value.get("module"), value.get("source")
        if isinstance(module, str) and isinstance(source, str) and "\0" not in source:
            folder = str(Path(source.removeprefix("file://")).expanduser())
            if "/" in source or source in (".", "..") or os.path.lexists(folder):
                yield folder
                yield f"{folder}/amplifier_module_{module.replace('-', '_')}"
        if module == "tool-mcp" and isinstance(options := value.get("config"), Mapping):
            servers = options.get("servers", options.get("mcpServers"))
            for server in servers.values() if isinstance(servers, Mapping) else ():
                yield from _of_server(server, directory)
        yield from (path for part in value.values() for path in _named(part, directory))
    elif isinstance(value, list | tuple):
        yield from (path for part in value for path in _named(part, directory))


def _of_server(server: Any, directory: str) -> Iterator[str]:
    if not isinstance(server, Mapping) or not isinstance(server.get("command"), str):
        return
    arguments = server.get("args")
    given = [*arguments] if isinstance(arguments, list | tuple) else []
    words = [word for word in given if isinstance(word, str) and "\0" not in word]
    base = os.path.join(directory, os.path.expanduser(str(server.get("cwd") or "")))  # noqa: PTH111, PTH118 - text in
    command = os.path.basename(server["command"])  # noqa: PTH119 - text in
    if "/" in server["command"]:
        yield os.path.join(base, os.path.expanduser(server["command"]))  # noqa: PTH111, PTH118 - text in
    yield from _of_words(words, base, is_run=_INTERPRETER.fullmatch(command) is not None)
    if command in ("npx", "npm", "pnpm", "bunx", "yarn", "bun"):
        # These take a package of the folder before one of the registry.
        for word in words:
            if name := re.sub(r"(?<=.)@[^/]*$", "", word).strip("/"):
                yield f"{base}/{_PACKAGES}/.bin/{name.rpartition('/')[2]}"
                yield f"{base}/{_PACKAGES}/{name}"


def _of_words(words: Iterable[str], base: str, *, is_run: bool) -> Iterator[str]:
    """Yield the files that are code among the words of a command.

    Others, such as a database, are the server's data.
    """
    option = ""
    for word in words:
        if word.startswith("-"):
            option = word
            continue
        if option == "-m":
            module = f"{base}/{word.replace('.', '/')}"
            yield from (module, f"{module}.py")
        for name in {word, *re.split(r"[\s'\"`;|&<>(){}=,$]+", word)} - {"", ".", ".."}:
            path = os.path.join(base, os.path.expanduser(name))  # noqa: PTH111, PTH118 - text in
            is_code = _CODE.fullmatch(os.path.splitext(name)[1]) is not None  # noqa: PTH122 - text in
            if is_code or is_run or _is_executable(path):
                yield path
        option, is_run = "", is_run and word == "run"


def _is_executable(path: str) -> bool:
    try:
        found = os.stat(path).st_mode  # noqa: PTH116 - text in
    except OSError:
        return False
    return stat.S_ISREG(found) and found & 0o111 != 0
