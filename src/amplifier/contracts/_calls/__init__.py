"""Calls of models and tools: which one is running, and the steps that wrap them."""

from ._current import CallKind, CurrentCall, call_scope, current_call, parent_call_id
from ._steps import Step, StepWrapper, ordered_steps

__all__ = [
    "CallKind",
    "CurrentCall",
    "Step",
    "StepWrapper",
    "call_scope",
    "current_call",
    "ordered_steps",
    "parent_call_id",
]
