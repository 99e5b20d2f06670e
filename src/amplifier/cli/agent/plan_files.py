"""Mount plans in YAML, TOML and JSON files, and changes of their modules."""

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

_MAX_BYTES = 16_000_000


# Real plans have some thousand characters and some hundred tokens.
_MAX_CHARACTERS = 1_000_000
_MAX_TOKENS = 50_000
"""Maximum number of YAML tokens. The parser takes up to a tenth of a millisecond per token."""
_MAX_KEPT = 100_000
"""Maximum size of YAML text that is parsed once for all sessions of a server."""
_MAX_LEVELS = 100
"""Maximum depth of YAML. The parser checks all levels for each token."""
_MAX_NUMBER = 500
"""Maximum length of a number. Parsing YAML's numbers in base 60 takes quadratic time."""


class PlanFileError(CommandError):
    """The file can't be read or parsed. The message has the reason."""


class UnknownFormat(PlanFileError):
    """The file's extension isn't that of a plan."""


class _RepeatedKey(CommandError):
    """A mapping has a key twice. Most parsers drop the first entry, which may contain the gate."""

    def __init__(self, key: object, first: int, second: int) -> None:
        lines = f"line {first}" if first == second else f"lines {first} and {second}"
        super().__init__(
            f"the key {key!r} is written twice, in {lines}; "
            "put both values under one key, or remove one"
        )


def read_plan_file(file: Path) -> Any:
    """Return the file's content as plain data.

    Raises:
        PlanFileError: The file can't be read or parsed.
        MissingExtraError: The file is YAML, and PyYAML isn't installed.
    """
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise UnknownFormat(
            f"{file.name!r} ends in {file.suffix!r}; expected one of {', '.join(_PARSERS)}"
        )
    try:
        return parse(read_file(file, most=_MAX_BYTES).decode("utf-8"))
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
    """Return a copy of a plan with changed entries of a module. Invalid entries stay as they are.

    Args:
        plan: The plan.
        module_id: The id of the module.
        change: Receives an entry with its config. Returns the new entry, or None to remove the
            entry.
        add: A section, and the entry to add there if the plan has none.
    """
    changed = merge_plans(plan, {})
    places = [
        (holder, key)
        for holder, key, _, _ in places_of(changed)
        if module_of(holder[key]) == module_id
    ]
    if not places and add is not None and isinstance(entries := changed.get(add[0]) or [], list):
        changed[add[0]] = [*entries, add[1]]
        places.append((changed[add[0]], -1))
    for holder, key in reversed(places):
        entry = {"module": module_id} if isinstance(holder[key], str) else holder[key]
        if isinstance(entry, dict) and isinstance(config := entry.get("config") or {}, dict):
            replacement = change({**entry, "config": config})
            if replacement is None:
                del holder[key]
            else:
                holder[key] = replacement
    return changed


def module_of(entry: object) -> Any:
    """Return the module that an entry of a plan names."""
    return entry.get("module") if isinstance(entry, Mapping) else entry


def _parse_json(text: str) -> Any:
    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(members := dict(pairs)) < len(pairs):
            # The YAML parser reports the lines, but not all JSON is YAML.
            with suppress(ValueError):
                parse_yaml(text)
            raise ValueError("a key is written twice; put both values under one key, or remove one")
        return members

    return json.loads(text, object_pairs_hook=checked)


def parse_yaml(text: str, *, is_plan: bool = True) -> Any:
    """Return the content of a YAML text, in bounded time and memory.

    Args:
        text: The text.
        is_plan: Plans have no aliases. Other texts have no merge keys.

    Raises:
        ValueError: The text is invalid, or larger or deeper than any plan.
        MissingExtraError: PyYAML isn't installed.
    """
    try:
        # PyYAML belongs to an extra, which plans in TOML and JSON don't need.
        import yaml  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading YAML plans", extra="cli", missing="pyyaml") from error
    try:
        if len(text) > _MAX_CHARACTERS:
            raise ValueError(
                f"it has {len(text):,} characters, "
                f"more than the {_MAX_CHARACTERS:,} that a plan may have"
            )
        # The loader rejects characters that YAML doesn't allow.
        loader = _bounded_loader(yaml, is_plan)(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _bounded_loader(yaml: Any, is_plan: bool) -> Any:
    """Return PyYAML's loader with limits on size and depth, and an error for a repeated key.

    With aliases, a few hundred bytes can expand to gigabytes: during parsing if merge keys copy
    them, or later when the plan is copied.
    """

    # PyYAML is imported on first use.
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        fetched = 0

        def fetch_more_tokens(self) -> Any:
            self.fetched += 1
            if self.fetched > _MAX_TOKENS:
                raise ValueError(f"line {self.line + 1}: it has more than {_MAX_TOKENS:,} tokens")
            if self.flow_level > _MAX_LEVELS or len(self.indents) > _MAX_LEVELS:
                raise ValueError(
                    f"line {self.line + 1}: it is nested more than {_MAX_LEVELS} levels deep"
                )
            return super().fetch_more_tokens()

        def compose_node(self, parent: Any, index: Any) -> Any:
            line = self.peek_event().start_mark.line + 1
            if is_plan and self.check_event(yaml.AliasEvent):
                raise ValueError(
                    f"line {line}: plans have no aliases (*name); write the value again"
                )
            node = super().compose_node(parent, index)
            is_long = isinstance(node.value, str) and len(node.value) > _MAX_NUMBER
            if is_long and not node.tag.endswith((":str", ":binary")):
                raise ValueError(
                    f"line {line}: a value of {len(node.value):,} characters that is not text; "
                    "quote it"
                )
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node, lines = super().compose_mapping_node(anchor), dict[Any, int]()
            for key, _ in node.value:
                if not is_plan and key.tag.endswith(":merge"):
                    raise ValueError(
                        f"line {key.start_mark.line + 1}: merge keys (<<) are not supported; "
                        "write the keys again"
                    )
                if isinstance(key.value, str):
                    # PyYAML decides which keys are equal: 1 and 0x1 are.
                    is_text = key.tag.endswith((":str", ":value", ":merge"))
                    value = key.value if is_text else self.construct_object(key)
                    # PyYAML rejects other keys, such as `!!map x`.
                    if isinstance(value, Hashable):
                        line = key.start_mark.line + 1
                        if value in lines:
                            raise _RepeatedKey(value, lines[value], line)
                        lines[value] = line
            return node

    return Loader


# A server reads its plan for each session, so that it notices a change. PyYAML would take longer
# than the session takes to open.
_parse_yaml_once = lru_cache(maxsize=4)(parse_yaml)


def _parse_plan_yaml(text: str) -> Any:
    return copy_json(_parse_yaml_once(text)) if len(text) <= _MAX_KEPT else parse_yaml(text)


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
    """Return the configuration of tool-mcp in a mount plan, or in a file of another host.

    Args:
        file: The file.
        expand: True replaces variables.

    Raises:
        CommandError: The file has no servers.
        PlanError: A variable isn't set.
    """
    content = read_plan_file(file)
    servers = servers_of(content)
    config = None if servers is None else {"servers": servers}
    entries = content.get("tools") if isinstance(content, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("module") == MCP_MODULE:
            config = dict(entry.get("config") or {})
    if config is not None:
        return expand_variables(config, os.environ) if expand else config
    raise CommandError(
        f"{file}: there are no MCP servers in it; "
        f"expected a plan with the module {MCP_MODULE}, or an object mcpServers"
    )


def servers_of(content: object) -> dict[str, Any] | None:
    """Return the servers in a file of another host, or None for another file.

    Their variables are converted to the form of plans.
    """
    if not isinstance(content, Mapping):
        return None
    servers = content.get("mcpServers")
    if servers is None and "session" not in content and "tools" not in content:
        # VS Code uses this key.
        servers = content.get("servers")
    return with_variables_of_plans(dict(servers)) if isinstance(servers, Mapping) else None


def with_variables_of_plans(value: Any) -> Any:
    """Convert variables of another host to the form of plans: ``${env:NAME}`` to ``${NAME}``."""

    def visit(item: object, _frames: object) -> Any:
        if not isinstance(item, str):
            return item
        text = _ENV_VARIABLE.sub(r"${\1}", item)
        return _INPUT_VARIABLE.sub(lambda name: f"${{{name[1].replace('-', '_').upper()}}}", text)

    return rebuild(value, visit)
