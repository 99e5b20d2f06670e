"""The answer of a turn as a value of the type that the caller requested."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from amplifier.contracts import Provider
from amplifier.errors import ResultError
from amplifier.models import ResponseFormatJsonSchema, ToolResult
from amplifier.models.answers import AnswerFormat

from ._provider_caller import capabilities_of

TOOL_NAME = "final_result"
ALWAYS = "structured_output"
"""The capability of a provider that constrains answers to a schema, with or without tools."""
WITHOUT_TOOLS = "json_schema"
"""The capability of a provider that constrains answers to a schema only without tools."""


class FinalResultTool:
    """The tool that the model calls with its answer.

    Attributes:
        name: The name of the tool.
        description: Its description for the model.
        input_schema: The JSON Schema of the answer.
        answer: The input of the first call that fits. None until there is one.
    """

    repeatable: bool = True

    def __init__(self, name: str, answer_format: AnswerFormat[Any]) -> None:
        self.name = name
        self.description = "Give the final answer. Call it once, when everything else is done." + (
            f" The answer: {answer_format.description}" if answer_format.description else ""
        )
        self.input_schema = answer_format.schema
        self._format = answer_format
        self.answer: dict[str, Any] | None = None

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        """Accept the answer, or return its problems to the model. Only one answer is accepted."""
        if self.answer is not None:
            message = "not used: an earlier call of this tool has already given the answer"
            return ToolResult(success=False, error={"message": message, "type": "AnswerGiven"})
        try:
            self._format.read_value(input)
        except ResultError as error:
            return ToolResult(success=False, error={"message": str(error), "type": "ResultError"})
        self.answer = input
        return ToolResult(success=True, output="The answer was accepted.")


# A provider that can constrain its answers to a schema does so. With any other provider, the turn
# offers one more tool, which the model calls with its answer as the input.


class TypedAnswer:
    """Requests and checks the typed answer of a turn.

    Attributes:
        tool: The tool for the answer. None if the provider constrains the answer itself.
    """

    def __init__(
        self,
        answer_format: AnswerFormat[Any],
        provider: Provider | None,
        tools: dict[str, Any],
        mode: str,
        attempts: int,
    ) -> None:
        self._format = answer_format
        self._left = attempts
        is_native = mode == "native" or (
            mode == "auto" and provider is not None and _is_native(provider, has_tools=bool(tools))
        )
        name = TOOL_NAME
        while name in tools:
            name = f"{name}_"
        self.tool = None if is_native else FinalResultTool(name, answer_format)

    @property
    def response_format(self) -> ResponseFormatJsonSchema | None:
        """The response format of the request, or None if a tool takes the answer."""
        if self.tool is not None:
            return None
        json_schema = {"name": self._format.name, "schema": self._format.schema}
        return ResponseFormatJsonSchema(
            json_schema=json_schema, strict=_is_strict(self._format.schema)
        )

    def accepted(self) -> str | None:
        """Return the answer that the tool has accepted as JSON text, or None."""
        if self.tool is None or self.tool.answer is None:
            return None
        return json.dumps(self.tool.answer, ensure_ascii=False)

    def accept_kept(self, arguments: dict[str, Any]) -> None:
        """Accept the input of a call that the tool accepted in an earlier process, if it fits."""
        if self.tool is not None and self.tool.answer is None:
            with suppress(ResultError):
                self._format.read_value(arguments)
                self.tool.answer = arguments

    def correction(self, text: str) -> str | None:
        """Return the reply to an answer without tool calls that doesn't fit, or None.

        Raises:
            ResultError: The answer doesn't fit, and no attempt is left.
        """
        try:
            self._format.read_text(text)
        except ResultError as error:
            self.use_attempt(error)
            advice = "Reply with the corrected JSON only."
            if self.tool is not None:
                advice = f"Call the tool {self.tool.name}."
            return f"{error}\n{advice}"
        return None

    def use_attempt(self, error: ResultError) -> None:
        """Count an answer that doesn't fit.

        Raises:
            ResultError: No attempt is left.
        """
        self._left -= 1
        if self._left <= 0:
            raise error

    def check_rejected(self, arguments: dict[str, Any]) -> None:
        """Count a rejected call to the tool.

        Raises:
            ResultError: No attempt is left.
        """
        try:
            self._format.read_value(arguments)
        except ResultError as error:
            self.use_attempt(error)
        # The answer fits, but a hook denied the call.
        else:
            self.use_attempt(
                ResultError(
                    [("$", "the answer was denied by a hook")], result_type=self._format.name
                )
            )


def _is_native(provider: Provider, *, has_tools: bool) -> bool:
    capabilities = capabilities_of(provider)
    return ALWAYS in capabilities or (WITHOUT_TOOLS in capabilities and not has_tools)


def _is_strict(schema: object) -> bool:
    """Return whether the schema requires every member of every object, so services enforce it."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    members = schema.get("properties")
    if schema.get("type") == "object":
        required = schema.get("required", [])
        if (
            not isinstance(members, dict)
            or set(members) != set(required)
            or schema.get("additionalProperties")
        ):
            return False
    return all(
        _is_strict(value)
        for key, value in schema.items()
        if key not in ("enum", "const", "default", "examples")
    )
