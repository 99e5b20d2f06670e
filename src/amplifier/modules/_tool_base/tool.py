"""The base class of built-in tools: input checked against its schema, failures as results, nothing raised but cancellation."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from amplifier.models import ToolResult

from .failure import ToolFailure, failure_from_os, shown
from .input_schema import check_input

logger = logging.getLogger("amplifier.modules.tools")


class BuiltinTool(ABC):
    """A tool with a fixed name, description and schema; subclasses do the work in `_run`.

    Attributes:
        repeatable: Whether a call that was cut off with its process may run again, see `amplifier.contracts.Tool`.
    """

    repeatable: ClassVar[bool | None] = None
    _name: ClassVar[str]
    _description: ClassVar[str]
    _schema: ClassVar[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self._name

    @property
    def description(self) -> str:
        """What it does, as text for the model."""
        return self._description

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, a copy."""
        return copy.deepcopy(dict(self._schema))

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Check the input, do the work, and answer; only cancellation is raised."""
        values, problems = check_input(self._schema, input)
        try:
            if problems:
                raise ToolFailure("InvalidInput", "; ".join(problems))
            return await self._run(values)
        except ToolFailure as failure:
            return self._failed(failure)
        except OSError as error:
            return self._failed(failure_from_os(error, self._subject(values)))

    @abstractmethod
    async def _run(self, values: dict[str, Any]) -> ToolResult:
        """Do the work on input that fits the schema, defaults filled in.

        Raises:
            ToolFailure: It cannot be done.
            OSError: The same, reported by the system.
        """

    def _subject(self, values: dict[str, Any]) -> str:
        return shown(str(values.get("file_path") or values.get("path") or ""))

    def _failed(self, failure: ToolFailure) -> ToolResult:
        message = shown(str(failure), 4000)
        logger.info("tool %s: %s (%s)", self._name, message, failure.kind)
        return ToolResult(success=False, error={"message": message, "type": failure.kind})
