"""Typed answers: the JSON Schema of a Python type, and reading what a model wrote as that type."""

from ._answer_format import AnswerFormat, PartialAnswer
from ._arguments import Argument, arguments_format, to_json
from ._result_types import answer_format

__all__ = ["AnswerFormat", "Argument", "PartialAnswer", "answer_format", "arguments_format", "to_json"]
