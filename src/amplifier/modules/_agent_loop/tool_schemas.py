"""Checks the input of a tool against the JSON Schema that the tool publishes."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import orjson

from amplifier.contracts import Tool, contained_failure, tool_schema
from amplifier.errors import ContractError
from amplifier.models import ToolSpec
from amplifier.models._definition.shared_list import SharedList, detached

jsonschema: Any
try:
    import jsonschema_rs as jsonschema
except ImportError:  # comes with an extra; without it the tool's own checks must do
    jsonschema = None

logger = logging.getLogger("amplifier.modules.turn")

_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}


class ToolSchemas:
    """The schemas of the tools of one turn, read once."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self._reported: set[str] = set()
        self._schemas: dict[str, dict[str, Any]] = {}
        self._specs: dict[str, tuple[Tool, ToolSpec]] = {}

    def specs(self) -> list[ToolSpec]:
        """The tools as the request lists them; a tool that cannot describe itself is left out and logged.

        A schema is the tool's own. Whoever reads the list gets copies.
        """
        specs = []
        for name, tool in self._tools.items():
            try:
                specs.append(self._spec(name, tool))
            except BaseException as exc:  # a tool's properties are foreign code
                failure = contained_failure(exc)
                logger.error("tool %r cannot describe itself and is not offered to the model", name, exc_info=failure)
        return SharedList(specs, detached)

    def _spec(self, name: str, tool: Tool) -> ToolSpec:
        schema, description = self._schema(name, tool), tool.description
        known, spec = self._specs.get(name, (None, None))
        if spec is None or known is not tool or spec.description != description:
            spec = ToolSpec(name=name, description=description, parameters=schema)
            self._specs[name] = tool, spec
        return spec

    def problem(self, name: str, given: dict[str, Any]) -> str | None:
        """What is wrong with an input, as text for the model; None if nothing is, or if it cannot be checked."""
        if jsonschema is None or name not in self._schemas:
            return None
        try:
            return self._problem(name, given)
        except BaseException as exc:  # noqa: BLE001 — a Rust extension; its panics are no Exception
            failure = contained_failure(exc)
            logger.warning("the input of tool %r cannot be checked against its schema: %s", name, failure)
            return None

    def _problem(self, name: str, given: dict[str, Any]) -> str | None:
        try:
            validator = _validator(orjson.dumps(self._schemas[name]))
        except TypeError:  # what orjson does not write, such as a large number
            validator = _validator_of(self._schemas[name])
        if isinstance(validator, str):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning("the schema of tool %r is not valid JSON Schema and is not checked: %s", name, validator)
            return None
        if validator.is_valid(given):
            return None
        problems = [f"{_path(error)}: {error.message}" for error in validator.iter_errors(given)]
        return "; ".join(problems[:5]) or None

    def _schema(self, name: str, tool: Tool) -> dict[str, Any]:
        if name not in self._schemas:
            try:
                self._schemas[name] = tool_schema(tool) or _ANYTHING
            except ContractError as exc:
                logger.warning("%s", exc)
                self._schemas[name] = _ANYTHING
        return self._schemas[name]


@lru_cache(maxsize=1024)  # every turn reads the schemas anew, and they are nearly always those of the turn before
def _validator(schema: bytes) -> Any:
    """A validator, or what is wrong with the schema, as text."""
    return _validator_of(orjson.loads(schema))


def _validator_of(schema: Any) -> Any:
    try:
        return jsonschema.validator_for(schema)
    except ValueError as exc:
        return str(exc)


def _path(error: Any) -> str:
    return "input" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.instance_path)
