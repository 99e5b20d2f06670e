"""Find the files that the agent runs or imports when it starts, because its plan names them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_CODE: Final = re.compile(
    r"\.(?:py[wz]?|[cm]?[jt]s|[jt]sx|sh|bash|zsh|fish|rb|pl|php|lua|jar|ps1|exs?|go|rs|wasm)", re.I
)
_INTERPRETER: Final = re.compile(
    r"(?:python|pypy|node|nodejs|bun|deno|ruby|perl|php|lua|sh|bash|zsh|dash|ksh|fish|tsx|ts-node"
    r"|uv)[\d.]*"
)
_PACKAGES: Final = "node_modules"


def started_places(config: object, directory: str) -> tuple[str, ...]:
    """Return the absolute paths of the files and folders that a plan makes the agent run.

    The files need not exist.

    Args:
        config: The plan, or a part of it.
        directory: The working directory.
    """
    paths: dict[str, None] = {}
    for path in _named(config, directory):
        paths |= dict.fromkeys((os.path.abspath(path), os.path.realpath(path)))  # noqa: PTH100
    # A folder that contains the working directory can't be protected as a whole.
    folders = (os.path.abspath(directory), os.path.realpath(directory))  # noqa: PTH100
    return tuple(
        path
        for path in paths
        if not any(f"{folder}/".startswith(f"{path.rstrip('/')}/") for folder in folders)
    )


def _named(value: object, directory: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        module, source = value.get("module"), value.get("source")
        if isinstance(module, str) and isinstance(source, str) and "\0" not in source:
            folder = os.path.expanduser(source.removeprefix("file://"))  # noqa: PTH111 - never raises
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


def _of_server(server: object, directory: str) -> Iterator[str]:
    if not isinstance(server, Mapping) or not isinstance(server.get("command"), str):
        return
    args = server.get("args")
    arguments = [
        argument
        for argument in (args if isinstance(args, list | tuple) else ())
        if isinstance(argument, str) and "\0" not in argument
    ]
    base = _joined(directory, str(server.get("cwd") or ""))
    command = os.path.basename(server["command"])  # noqa: PTH119 - text in
    if "/" in server["command"]:
        yield _joined(base, server["command"])
    yield from _of_arguments(arguments, base, is_run=_INTERPRETER.fullmatch(command) is not None)
    if command in ("npx", "npm", "pnpm", "bunx", "yarn", "bun"):
        # These commands prefer a package in the folder to one in the registry.
        for word in arguments:
            if name := re.sub(r"(?<=.)@[^/]*$", "", word).strip("/"):
                yield f"{base}/{_PACKAGES}/.bin/{name.rpartition('/')[2]}"
                yield f"{base}/{_PACKAGES}/{name}"


def _joined(base: str, path: str) -> str:
    return os.path.join(base, os.path.expanduser(path))  # noqa: PTH111, PTH118 - text in


def _of_arguments(arguments: Iterable[str], base: str, *, is_run: bool) -> Iterator[str]:
    """Yield the files that contain code among the arguments of a command.

    Other files, such as a database, contain the server's data.
    """
    option = ""
    for word in arguments:
        if word.startswith("-"):
            option = word
            continue
        if option == "-m":
            module = f"{base}/{word.replace('.', '/')}"
            yield from (module, f"{module}.py")
        for name in {word, *re.split(r"[\s'\"`;|&<>(){}=,$]+", word)} - {"", ".", ".."}:
            path = _joined(base, name)
            is_code = _CODE.fullmatch(os.path.splitext(name)[1]) is not None  # noqa: PTH122
            if is_code or is_run or _is_executable(path):
                yield path
        option, is_run = "", is_run and word == "run"


def _is_executable(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - text in
    except OSError:
        return False
    return stat.S_ISREG(mode) and mode & 0o111 != 0
