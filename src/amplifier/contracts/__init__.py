"""The contracts between modules and their host: Protocols with numbered clauses."""

from ._approval import (
    ApprovalProvider,
    ApprovalQuestion,
    ApprovalSystem,
    DisplaySystem,
    UserInput,
    log_unanswered,
    note_question,
    question_for,
)
from ._bounded_calls import contain_errors
from ._catalogue import COMMON_CLAUSES, CONTRACTS, Contract, clauses_for
from ._clause import Clause, Level
from ._context import ContextManager
from ._coordinator import Coordinator, MountPoint
from ._hook import Handler, HandlerAnswer, HookHandler, OnFailure
from ._host import DEFAULT, Cancellation, Cleanup, Hooks, Inherited, Session
from ._mount import MountFunction, OnSessionReady, SimpleMount, StructuredMount
from ._orchestrator import Orchestrator
from ._provider import Provider
from ._source import AsyncModuleSourceResolver, ModuleSource, ModuleSourceResolver
from ._tool import Done, NotDone, Reconciled, Tool, Unknown, tool_repeatable, tool_schema
from .calls import (
    CHILD_STEPS,
    CallKind,
    CurrentCall,
    Step,
    StepWrapper,
    call_scope,
    current_call,
    ordered_steps,
)
from .cancellation import contained_failure

__all__ = [
    "CHILD_STEPS",
    "COMMON_CLAUSES",
    "CONTRACTS",
    "DEFAULT",
    "ApprovalProvider",
    "ApprovalQuestion",
    "ApprovalSystem",
    "AsyncModuleSourceResolver",
    "CallKind",
    "Cancellation",
    "Clause",
    "Cleanup",
    "ContextManager",
    "Contract",
    "Coordinator",
    "CurrentCall",
    "DisplaySystem",
    "Done",
    "Handler",
    "HandlerAnswer",
    "HookHandler",
    "Hooks",
    "Inherited",
    "Level",
    "ModuleSource",
    "ModuleSourceResolver",
    "MountFunction",
    "MountPoint",
    "NotDone",
    "OnFailure",
    "OnSessionReady",
    "Orchestrator",
    "Provider",
    "Reconciled",
    "Session",
    "SimpleMount",
    "Step",
    "StepWrapper",
    "StructuredMount",
    "Tool",
    "Unknown",
    "UserInput",
    "call_scope",
    "clauses_for",
    "contain_errors",
    "contained_failure",
    "current_call",
    "log_unanswered",
    "note_question",
    "ordered_steps",
    "question_for",
    "tool_repeatable",
    "tool_schema",
]
