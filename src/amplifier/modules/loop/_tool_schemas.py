"""Checks the input of a tool against the JSON Schema that the tool publishes."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import anyio
import anyio.to_thread
import orjson

from amplifier._json import SchemaRefused, Validator, build_validator, copy_json
from amplifier.contracts import Tool, contained_failure, tool_schema
from amplifier.errors import ContractError, MissingExtraError
from amplifier.models import ToolSpec

logger = logging.getLogger("amplifier.modules.turn")

_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}

_BUILT_IN_PLACE = 16_384
"""Bytes; the validator for a larger schema is built in a thread."""
_SECONDS_TO_BUILD = 10.0


class ToolSchemas:
    """The schemas of the tools of one turn, read once."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self._reported: set[str] = set()
        self._schemas: dict[str, dict[str, Any]] = {}

    def specs(self) -> list[ToolSpec]:
        """The tools as the request lists them; a tool that cannot describe itself is left out and logged.

        A schema is the tool's own; the list holds copies.
        """
        specs = []
        for name, tool in self._tools.items():
            try:
                parameters = copy_json(self._schema(name, tool))
                specs.append(ToolSpec(name=name, description=tool.description, parameters=parameters))
            except BaseException as exc:  # a tool's properties are foreign code
                failure = contained_failure(exc)
                logger.error("tool %r cannot describe itself and is not offered to the model", name, exc_info=failure)
        return specs

    async def problem(self, name: str, given: dict[str, Any]) -> str | None:
        """What is wrong with an input, as text for the model; None if nothing is, or if it cannot be checked."""
        if name not in self._schemas:
            return None
        validator = await self._built(name)
        try:
            return self._problem(name, validator, given)
        except BaseException as exc:  # noqa: BLE001 — a Rust extension; its panics are no Exception
            failure = contained_failure(exc)
            logger.warning("the input of tool %r cannot be checked against its schema: %s", name, failure)
            return None

    async def _built(self, name: str) -> Validator | str | None:
        try:
            written = orjson.dumps(self._schemas[name])
        except TypeError:  # what orjson does not write, such as a large number
            return _validator_of(self._schemas[name])
        if len(written) <= _BUILT_IN_PLACE:
            return _validator(written)
        with anyio.move_on_after(_SECONDS_TO_BUILD):
            return await anyio.to_thread.run_sync(_validator, written, abandon_on_cancel=True)
        return f"it could not be read within {_SECONDS_TO_BUILD:g} s"

    def _problem(self, name: str, validator: Validator | str | None, given: dict[str, Any]) -> str | None:
        if isinstance(validator, str):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning("the schema of tool %r cannot be used, and inputs are not checked: %s", name, validator)
            return None
        problems = [] if validator is None else validator.problems(given, 5)
        return "; ".join(f"{_path(place)}: {message}" for place, message in problems) or None

    def _schema(self, name: str, tool: Tool) -> dict[str, Any]:
        if name not in self._schemas:
            try:
                self._schemas[name] = tool_schema(tool) or _ANYTHING
            except ContractError as exc:
                logger.warning("%s", exc)
                self._schemas[name] = _ANYTHING
        return self._schemas[name]


@lru_cache(maxsize=1024)  # every turn reads the schemas anew, and they are nearly always those of the turn before
def _validator(schema: bytes) -> Validator | str | None:
    """A validator, or what is wrong with the schema, as text; None if the package that validates is not there."""
    return _validator_of(orjson.loads(schema))


def _validator_of(schema: Any) -> Validator | str | None:
    try:
        return build_validator(schema)
    except SchemaRefused as exc:
        return str(exc)
    except MissingExtraError:  # then the tool's own checks must do
        return None


def _path(place: Any) -> str:
    return "input" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
