"""Reads mount plans from YAML, TOML and JSON files, and changes a module of a plan; the kernel reads no files."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from amplifier._internal.json import copy_json, rebuild
from amplifier._internal.regular_files import read_file
from amplifier.cli._exit_codes import CommandError
from amplifier.errors import MissingExtraError
from amplifier.plan import expand_variables, merge_plans
from amplifier.plan.dicts import places_of

_LARGEST = 16_000_000
"""Bytes of a file."""


# Real plans have some thousand characters and some hundred tokens.
_MOST_CHARACTERS = 1_000_000
_MOST_TOKENS = 50_000
"""Of YAML, whose parser takes up to a tenth of a millisecond for one."""
_MOST_KEPT = 100_000
"""Characters of YAML that are parsed once for all sessions of a server."""
_DEEPEST = 100
"""Levels of YAML; for each token its parser looks at all of them."""
_LONGEST_NUMBER = 500
"""Characters; numbers of YAML may have the base 60, which takes time that grows with the square of their length."""


class PlanFileError(CommandError):
    """The file cannot be read or parsed; the message has the reason."""


class UnknownFormat(PlanFileError):
    """The file's extension is none that a plan has."""


class _RepeatedKey(CommandError):
    """A mapping has a key twice; most parsers drop the first one, which may be the section with the gate."""

    def __init__(self, key: object, first: int, second: int) -> None:
        lines = f"line {first}" if first == second else f"lines {first} and {second}"
        super().__init__(
            f"the key {key!r} is written twice, in {lines}; put both values under one key, or remove one"
        )


def read_plan_file(file: Path) -> Any:
    """The file's content as plain data.

    Raises:
        PlanFileError: It cannot be read or parsed.
        MissingExtraError: It is YAML and PyYAML is not installed.
    """
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise UnknownFormat(
            f"{file.name!r} ends in {file.suffix!r}; expected one of {', '.join(_PARSERS)}"
        )
    try:
        return parse(read_file(file, most=_LARGEST).decode("utf-8"))
    except OSError as error:
        raise PlanFileError(
            f"{file}: the plan cannot be read: {error.strerror or error}"
        ) from error
    except _RepeatedKey as error:
        raise PlanFileError(f"{file}: {error}") from error
    except ValueError as error:
        raise PlanFileError(f"{file}: not valid {file.suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise PlanFileError(f"{file}: nested too deeply to be a mount plan") from error


def change_module(
    plan: Mapping[str, Any],
    module_id: str,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    *,
    add: tuple[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A copy of a plan with other entries of a module; what is no plan is left to whoever opens the session.

    Args:
        change: Gets an entry with its config, and returns what takes its place; None for nothing.
        add: A section, and the entry it gets if the plan has none.
    """
    changed = merge_plans(plan, {})
    found = [
        (holder, key)
        for holder, key, _, _ in places_of(changed)
        if module_of(holder[key]) == module_id
    ]
    if not found and add is not None and isinstance(entries := changed.get(add[0]) or [], list):
        changed[add[0]] = [*entries, add[1]]
        found.append((changed[add[0]], -1))
    for holder, key in reversed(found):
        entry = {"module": module_id} if isinstance(holder[key], str) else holder[key]
        if isinstance(entry, dict) and isinstance(config := entry.get("config") or {}, dict):
            made = change({**entry, "config": config})
            if made is None:
                del holder[key]
            else:
                holder[key] = made
    return changed


def module_of(entry: Any) -> Any:
    """The module that an entry of a plan names."""
    return entry.get("module") if isinstance(entry, Mapping) else entry


def _parse_json(text: str) -> Any:
    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            with suppress(ValueError):  # not all JSON is YAML
                parse_yaml(text)  # which knows the lines
            raise ValueError("a key is written twice; put both values under one key, or remove one")
        return found

    return json.loads(text, object_pairs_hook=checked)


def parse_yaml(text: str, *, is_plan: bool = True) -> Any:
    """What a YAML text says, in bounded time and memory.

    Args:
        text: The text.
        is_plan: Plans have no aliases; other texts have no merge keys.

    Raises:
        ValueError: It is not valid, or larger or deeper than any plan.
        MissingExtraError: PyYAML is not installed.
    """
    try:
        import yaml  # noqa: PLC0415  # belongs to an extra; plans in TOML and JSON do without
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading YAML plans", extra="cli", missing="pyyaml") from error
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"it has {len(text):,} characters, more than the {_MOST_CHARACTERS:,} that a plan may have"
            )
        loader = _bounded_loader(yaml, is_plan)(text)  # refuses characters that YAML does not allow
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _bounded_loader(yaml: Any, is_plan: bool) -> Any:
    """PyYAML's loader, which stops where a file is larger or deeper than any plan, or has a key twice.

    Aliases let a few hundred bytes stand for gigabytes: at once if merge keys copy them, else when the value is copied, as plans are.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is imported when it is needed
        fetched = 0

        def fetch_more_tokens(self) -> Any:
            self.fetched += 1
            if self.fetched > _MOST_TOKENS:
                raise ValueError(f"line {self.line + 1}: it has more than {_MOST_TOKENS:,} tokens")
            if self.flow_level > _DEEPEST or len(self.indents) > _DEEPEST:
                raise ValueError(
                    f"line {self.line + 1}: it is nested more than {_DEEPEST} levels deep"
                )
            return super().fetch_more_tokens()

        def compose_node(self, parent: Any, index: Any) -> Any:
            line = self.peek_event().start_mark.line + 1
            if is_plan and self.check_event(yaml.AliasEvent):
                raise ValueError(
                    f"line {line}: plans have no aliases (*name); write the value again"
                )
            node = super().compose_node(parent, index)
            is_long = isinstance(node.value, str) and len(node.value) > _LONGEST_NUMBER
            if is_long and not node.tag.endswith((":str", ":binary")):
                raise ValueError(
                    f"line {line}: a value of {len(node.value):,} characters that is no text; quote it"
                )
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, lines = super().compose_mapping_node(anchor), dict[Any, int]()
            for key, _ in node.value:
                if not is_plan and key.tag.endswith(":merge"):
                    raise ValueError(
                        f"line {key.start_mark.line + 1}: merge keys (<<) are not read; write the keys again"
                    )
                if isinstance(key.value, str):
                    # PyYAML decides which keys are the same one: ``1`` and ``0x1`` are.
                    is_text = key.tag.endswith((":str", ":value", ":merge"))
                    value = key.value if is_text else self.construct_object(key)
                    if isinstance(value, Hashable):  # PyYAML refuses others, such as `!!map x`
                        line = key.start_mark.line + 1
                        if value in lines:
                            raise _RepeatedKey(value, lines[value], line)
                        lines[value] = line
            return node

    return Loader


# A server reads its plan for each session, so that it notices a change, and PyYAML takes longer than
# the session takes to open.
_parse_yaml_once = lru_cache(maxsize=4)(parse_yaml)


def _parse_plan_yaml(text: str) -> Any:
    return copy_json(_parse_yaml_once(text)) if len(text) <= _MOST_KEPT else parse_yaml(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _parse_plan_yaml,
    ".yml": _parse_plan_yaml,
    ".toml": tomllib.loads,
    ".json": _parse_json,
}


# ── MCP servers ──

MCP_MODULE: Final = "tool-mcp"
_ENV_VARIABLE = re.compile(r"\$\{env:(\w+)\}")
_INPUT_VARIABLE = re.compile(r"\$\{input:([\w-]+)\}")


def read_servers(file: Path, *, expand: bool = True) -> dict[str, Any]:
    """The configuration of tool-mcp in a mount plan, or in a file of another host, with its variables filled in if wanted so.

    Raises:
        CommandError: The file names no servers.
        PlanError: A variable is not set.
    """
    content = read_plan_file(file)
    servers = servers_of(content)
    found = None if servers is None else {"servers": servers}
    entries = content.get("tools") if isinstance(content, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("module") == MCP_MODULE:
            found = dict(entry.get("config") or {})
    if found is not None:
        return expand_variables(found, os.environ) if expand else found
    raise CommandError(
        f"{file}: there are no MCP servers in it; expected a plan with the module {MCP_MODULE}, or an object mcpServers"
    )


def servers_of(content: Any) -> dict[str, Any] | None:
    """The servers in a file of another host, with variables in the form of plans; None if it is no such file."""
    if not isinstance(content, Mapping):
        return None
    servers = content.get("mcpServers")
    if servers is None and "session" not in content and "tools" not in content:
        servers = content.get("servers")  # of VS Code
    return with_variables_of_plans(dict(servers)) if isinstance(servers, Mapping) else None


def with_variables_of_plans(value: Any) -> Any:
    """Values of another host with variables in the form of plans: ``${env:NAME}`` becomes ``${NAME}``."""

    def visit(each: Any, _frames: object) -> Any:
        if not isinstance(each, str):
            return each
        each = _ENV_VARIABLE.sub(r"${\1}", each)
        return _INPUT_VARIABLE.sub(lambda found: f"${{{found[1].replace('-', '_').upper()}}}", each)

    return rebuild(value, visit)
