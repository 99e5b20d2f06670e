"""Functions as modules: `tool` makes a function a tool, `on` makes one a hook. Both return the function itself.

The schema of a tool comes from the type hints of its function, the descriptions from its docstring. What a model sends is read into
these types; what does not fit goes back to the model with the path of each problem. What the function returns is written as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import operator
import re
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import ModuleType
from typing import Any, Never, Protocol, TypeAlias, TypeVar, overload

import anyio
import attrs

from ._internal.executors import call_in_process, call_in_thread, is_call_over, why_not_isolated
from ._internal.json import canonical_dumps
from ._internal.reading import (
    Kind,
    anything,
    can_call,
    flag,
    option,
    read_arguments,
    seconds,
    text,
    whole_number,
)
from ._internal.spelling import warn_of_misspelt_event
from .contracts import (
    ApprovalQuestion,
    Coordinator,
    CurrentCall,
    Reconciled,
    Session,
    current_call,
    note_question,
)
from .errors import MissingExtraError, PlanError, ResultError
from .models import HookResult, ToolResult
from .models.answers import AnswerFormat, Argument, arguments_format, to_json

__all__ = [
    "FunctionTool",
    "HookOptions",
    "ToolOptions",
    "check_cancelled",
    "mount_functions",
    "mount_hook",
    "mount_tool",
    "on",
    "tool",
]

_logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])
_O = TypeVar("_O", bound=attrs.AttrsInstance)
_Reconcile: TypeAlias = Callable[[dict[str, Any], CurrentCall], Awaitable[Reconciled]]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MARK = "__amplifier_tool__"
_HOOK_MARK = "__amplifier_on__"
_INJECTED: Mapping[Any, str] = {Coordinator: "coordinator", Session: "session", CurrentCall: "call"}


_tool_name = Kind(
    "a name of letters, digits, _ and -",
    lambda value: isinstance(value, str) and bool(_NAME.fullmatch(value)),
)
_approval = Kind(
    "True, False or a function without async, of the same arguments",
    lambda value: isinstance(value, bool) or (callable(value) and not _is_async(value)),
)


_reconciling = Kind(
    "an async function of the input and the call",
    lambda value: callable(value) and _is_async(value),
)


@attrs.frozen(kw_only=True)
class ToolOptions:
    """What `tool` was given; see there."""

    name: str | None = option(_tool_name, None)
    description: str | None = option(text, None)
    timeout: float | None = option(seconds, None)
    repeatable: bool | None = option(flag, None)
    approve: bool | Callable[..., bool] | None = option(_approval, None)
    read_only: bool = option(flag, False)
    quick: bool = option(flag, False)
    isolate: bool = option(flag, False)
    reconcile: _Reconcile | None = option(_reconciling, None)


class _UnknownOption(Protocol):
    """Decorate like `tool`, and be a type error, because an option is unknown.

    Without it, no overload would match, and the decorated function would lose its type as well.
    """

    def __call__(self, function: _F, /, *, unknown_option: Never) -> _F: ...


@overload
def tool(function: _F, /) -> _F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    repeatable: bool | None = None,
    approve: bool | Callable[..., bool] | None = None,
    read_only: bool = False,
    quick: bool = False,
    isolate: bool = False,
    reconcile: _Reconcile | None = None,
) -> Callable[[_F], _F]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    repeatable: bool | None = None,
    approve: bool | Callable[..., bool] | None = None,
    read_only: bool = False,
    quick: bool = False,
    isolate: bool = False,
    **unknown: object,
) -> _UnknownOption: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool, with options; a plan and `agent` take functions without it as well.

    Args:
        name: What the model calls it by; the function's name otherwise.
        description: For the model; the docstring's text otherwise.
        timeout: Seconds after which a call is given up; the model gets a result that states it.
        repeatable: Whether a call that was cut off with its process may run again.
        approve: True asks before each call, False before none, a function of the same arguments before the calls for which
            it returns True. Without it the session decides: one that asks about its tools asks about this one.
        read_only: It changes nothing, so a session that asks about its tools does not ask about this one.
        quick: A function without ``async`` that neither waits nor computes long: it is called directly, not in a worker thread.
        isolate: Run it in a worker process, which a stop or a timeout really ends. For functions without ``async`` that a
            module has at its top level; arguments and result are pickled.
        reconcile: ``async def fn(input, call)``, asked after a crash what became of a call that was running: `Done`, `NotDone`
            or `Unknown` of `amplifier.contracts`.
    """
    made = _read_options(ToolOptions, options, "@tool cannot be used")
    if made.quick and made.isolate:
        raise TypeError(
            "tool(quick=True, isolate=True): called directly or in a process of its own, not both"
        )

    def mark(marked: _F) -> _F:
        _check_function(marked)
        try:
            setattr(marked, _MARK, made)
        except (AttributeError, TypeError):  # a method of an object, or a function that is built in
            marked = functools.partial(marked)  # type: ignore[assignment]
            setattr(marked, _MARK, made)
        return marked

    return mark if function is None else mark(function)


def check_cancelled() -> None:
    """End a blocking function tool whose call is over, because it was stopped or timed out.

    Call it between the steps of a function that runs in a thread. Elsewhere it does nothing.

    Raises:
        SystemExit: The call is over, and its result would be dropped. It ends only this thread.
    """
    if is_call_over():
        raise SystemExit


def _read_options(cls: type[_O], given: Mapping[str, Any], subject: str) -> _O:
    try:
        return read_arguments(cls, given, subject)
    except PlanError as error:
        raise TypeError(str(error)) from None


def _are_names(given: Any) -> bool:
    is_list = isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)
    return is_list and all(isinstance(name, str) and name for name in given)


@attrs.frozen(kw_only=True)
class HookOptions:
    """What `on` was given; see there."""

    events: tuple[str, ...] = option(anything)
    priority: int = option(whole_number(), 0)
    fields: tuple[str, ...] | None = option(
        Kind("a list of names, such as ('tool_name',)", _are_names, tuple), None
    )
    gate: bool = option(flag, False)


def on(
    *events: str,
    priority: int = 0,
    fields: Collection[str] | None = None,
    gate: bool = False,
    **unknown: Never,
) -> Callable[[_F], _F]:
    """Mark a function ``(event, data)`` as the handler of events.

    Args:
        events: Names of events, such as ``"tool:pre"``.
        priority: Handlers run in this order, lower first.
        fields: The fields of the payload that it gets; all of them otherwise.
        gate: Its failure, and an answer that is none, denies.

    Raises:
        TypeError: An argument cannot be used; the message says what was expected.
    """
    if not events or not _are_names(events):
        raise TypeError(f"expected names of events, as in @on('tool:pre'), got {events!r:.80}")
    given = {"events": events, "priority": priority, "fields": fields, "gate": gate, **unknown}
    options = _read_options(HookOptions, given, "@on cannot be used")
    for event in events:
        warn_of_misspelt_event(event, __name__)

    def mark(marked: _F) -> _F:
        setattr(marked, _HOOK_MARK, options)
        return marked

    return mark


def _hook_options(function: Any) -> HookOptions | None:
    """What `on` was given for this function."""
    found = getattr(_inside_partials(function), _HOOK_MARK, None)
    return found if isinstance(found, HookOptions) else None


class FunctionTool:
    """A function as a tool of the contract.

    Args:
        function: With type hints; marked by `tool` or not.
        coordinator: For functions with an argument of the type `Coordinator` or `Session`.

    Raises:
        TypeError: A model could not call it; the message says what to change.

    Attributes:
        name: What the model calls it by.
        description: For the model.
        repeatable: Whether a call that was cut off with its process may run again.
        options: What `tool` was given.
        reconcile: Finds out what became of a call that was cut off; None where that is not known.
    """

    def __init__(
        self, function: Callable[..., Any], coordinator: Coordinator | None = None
    ) -> None:
        _check_function(function)
        found = getattr(function, _MARK, None) or getattr(_inside_partials(function), _MARK, None)
        self.options: ToolOptions = found if isinstance(found, ToolOptions) else ToolOptions()
        self._function = function
        self._coordinator = coordinator
        self.name: str = self.options.name or _name_of(function)
        if not _NAME.fullmatch(self.name):
            raise TypeError(
                f"{self.name!r:.80} is no name for a tool; give it one, as in tool(name='add')(function)"
            )
        self.repeatable: bool | None = self.options.repeatable
        self.reconcile: _Reconcile | None = self.options.reconcile
        self._is_async = _is_async(function)
        read = _read_function(function, self.name)
        if missing := [key for key in read.parameters if key not in read.hints]:
            _logger.warning(
                "tool %r: %s has no type hint, so a model may send anything for it; write one, as in %s: str",
                self.name,
                " and ".join(missing),
                missing[0],
            )
        self._injected = read.injected
        self._positional = {
            key: kind.default
            for key, kind in read.parameters.items()
            if kind.kind is kind.POSITIONAL_ONLY
        }
        if self.options.isolate:
            given = (
                f"it gets its {next(iter(self._injected))!r} from the session"
                if self._injected
                else None
            )
            if (
                reason := "it is async"
                if self._is_async
                else given or why_not_isolated(_inside_partials(function))
            ):
                raise TypeError(
                    f"tool {self.name!r} cannot be isolated in a worker process, because {reason}"
                )
        self.description: str = self.options.description or read.text or self.name
        self._defaults = {
            key: kind.default
            for key, kind in read.parameters.items()
            if key not in read.injected and kind.default is not inspect.Parameter.empty
        }
        self._format = read.format

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return json.loads(json.dumps(self._format.schema))  # type: ignore[no-any-return]

    def get_schema(self) -> dict[str, Any]:
        """The same, under the name that some loops look for."""
        return self.input_schema

    @property
    def annotations(self) -> dict[str, bool]:
        """The hints of the Model Context Protocol about this tool."""
        return {"readOnlyHint": True} if self.options.read_only else {}

    def needs_approval(self, given: Any) -> bool | None:
        """Return whether a person has to allow a call with this input; None if the function does not declare it.

        A function that decides about it and fails is a yes.
        """
        if not callable(self.options.approve):
            return (
                False
                if self.options.approve is None and self.options.read_only
                else self.options.approve
            )
        try:
            taken = inspect.signature(self.options.approve).parameters
            defaults = {key: default for key, default in self._defaults.items() if key in taken}
            return bool(self.options.approve(**defaults | self._format.read_value(given)))
        except Exception:  # noqa: BLE001 — the application's own function; what cannot be decided is asked
            return True

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        """Call the function with what the model sent; a result for the model in every case but its own exceptions."""
        try:
            values = self._format.read_value(input)
        except ResultError as error:
            problems = "; ".join(f"{path}: {problem}" for path, problem in error.problems)
            return _refused(f"invalid input for {self.name}: {problems}", "InvalidInput")
        for key, what in self._injected.items():
            values[key] = self._inject(what)
        value: Any = None
        with anyio.move_on_after(self.options.timeout) as scope:
            value = await self._call(values)
        if scope.cancelled_caught:
            return _refused(
                f"{self.name} took longer than {self.options.timeout:g} s and was stopped",
                "Timeout",
            )
        return _result_of(self.name, value)

    def _inject(self, what: str) -> Any:
        if what == "call":
            return current_call()
        if self._coordinator is None:
            raise RuntimeError(f"tool {self.name!r} needs a session: mount it in one")
        return self._coordinator if what == "coordinator" else self._coordinator.session

    async def _call(self, values: dict[str, Any]) -> Any:
        before = [values.pop(key, default) for key, default in self._positional.items()]
        call = functools.partial(self._function, *before, **values)
        if self._is_async:
            return await call()
        if self.options.quick:
            value = call()
        elif self.options.isolate:
            value = await call_in_process(call, self.name)
        else:
            value = await call_in_thread(call, f"amplifier tool {self.name}")
        return await value if inspect.isawaitable(value) else value


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────

_Mount = Callable[[Coordinator, dict[str, Any]], Awaitable[Any]]


def mount_tool(function: Callable[..., Any]) -> _Mount:
    """The mount function of a function that is a tool."""

    async def mount(coordinator: Coordinator, config: dict[str, Any]) -> FunctionTool:
        made = FunctionTool(function, coordinator)
        if made.options.approve:
            _ask_before(coordinator, made)
        return made

    return mount


def mount_hook(function: Callable[..., Any]) -> _Mount:
    """The mount function of a function that `on` has marked."""
    options = _hook_options(function)
    if options is None:
        raise TypeError(f"{_shown(function)} without @on; name its events, as in @on('tool:pre')")
    if not can_call(function, "", {}):
        raise TypeError(f"{_shown(function)}; a hook takes (event, data)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{_shown(function)}, which yields; a hook returns a HookResult or None")

    async def mount(coordinator: Coordinator, config: dict[str, Any]) -> Callable[[], None]:
        more: dict[str, Any] = {} if options.fields is None else {"fields": options.fields}
        undo = contextlib.ExitStack()
        for event in options.events:
            unregister = coordinator.hooks.register(
                event,
                function,
                priority=options.priority,
                name=_name_of(function),
                on_failure="deny" if options.gate else "continue",
                **more,
            )
            undo.callback(unregister)
        _logger.debug("%s handles %s", _name_of(function), ", ".join(options.events))
        return undo.close

    return mount


def mount_functions(module: ModuleType) -> _Mount | None:
    """The mount function of a file whose functions are marked by `tool` and `on`; None if it has none.

    Raises:
        TypeError: One cannot be a tool; the message says what to change.
    """
    found = vars(module).values()
    own = [
        value
        for value in found
        if getattr(_inside_partials(value), "__module__", None) == module.__name__
    ]
    tools = [value for value in own if isinstance(getattr(value, _MARK, None), ToolOptions)]
    hooks = [value for value in own if _hook_options(value) is not None]
    if not tools and not hooks:
        return None
    for function in tools:
        FunctionTool(function)

    async def mount(coordinator: Coordinator, config: dict[str, Any]) -> Callable[[], None]:
        undo = contextlib.ExitStack()
        for function in hooks:
            undo.callback(await mount_hook(function)(coordinator, config))
        for function in tools:
            made = await mount_tool(function)(coordinator, config)
            await coordinator.mount("tools", made, name=made.name)
        return undo.close

    return mount


def _ask_before(coordinator: Coordinator, asked: FunctionTool) -> None:
    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        name, given = str(data.get("tool_name")), data.get("tool_input")
        mounted: Any = (coordinator.get("tools") or {}).get(name)
        while hasattr(mounted, "__wrapped__"):  # by a budget
            mounted = mounted.__wrapped__
        if (mounted is not asked and name != asked.name) or not asked.needs_approval(given):
            return HookResult()
        lets_pass = coordinator.get_capability("approval.lets_pass")
        if lets_pass is not None and not lets_pass(
            name, given
        ):  # hooks-approval asks or denies: one question is enough
            return HookResult()
        # ASCII only, so that no invisible or bidirectional character of a model's text reaches the person who decides.
        shown = json.dumps(given, ensure_ascii=True, sort_keys=True, default=repr)
        prompt = f"Allow {asked.name} with {shown}?"
        owner = coordinator.owner_of("tools", name)
        note_question(
            ApprovalQuestion(
                text=prompt,
                tool=name,
                arguments=given if isinstance(given, Mapping) else {"input": given},
                module=None if owner is None else owner.partition("#")[0],
                reason="the tool itself asks for it",
            )
        )
        return HookResult(action="ask_user", approval_prompt=prompt)

    unregister = coordinator.hooks.register(
        "tool:pre", ask, name=f"approve-{asked.name}", on_failure="deny"
    )
    coordinator.register_cleanup(unregister)


# ── reading functions ────────────────────────────────────────────────────────────────────────────


def _shown(function: Any) -> str:
    return f"the function {_name_of(function)}{inspect.signature(function)}"


def _check_function(function: Any) -> None:
    if isinstance(function, type) or not callable(function):
        found = (
            f"the class {function.__name__}"
            if isinstance(function, type)
            else type(function).__name__
        )
        raise TypeError(f"expected a function, got {found}")


def _is_async(function: Any) -> bool:
    # An object may have an asynchronous `__call__`.
    method = getattr(_inside_partials(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


def _inside_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any) -> str:
    function = _inside_partials(function)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _hints_of(name: str, function: Any) -> dict[str, Any]:
    function = _inside_partials(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise TypeError(
            f"tool {name!r}: its type hints cannot be read: {error}; names in them must be importable from its module"
        ) from error


def _parameters_of(name: str, function: Any) -> dict[str, inspect.Parameter]:
    """The parameters by name, without those that a partial has given."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"tool {name!r} has no signature that Python can read: {error}; wrap it in a def"
        ) from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(
                f"tool {name!r} takes {stars}{parameter.name}; a model sends arguments by name, so write them out"
            )
    parameters = dict(signature.parameters)
    while isinstance(function, functools.partial):
        for key in function.keywords:
            parameters.pop(key, None)
        function = function.func
    return parameters


_READ = "__amplifier_read__"
"""Keeps what was read of a function, as an attribute of it, so that both are collected together."""


@attrs.frozen(kw_only=True)
class _ReadFunction:
    """The parts of a function that a tool is made of, which are the same in every session.

    Attributes:
        basis: The parts of the function that were read, to see whether they have changed.
        parameters: The parameters by name.
        hints: Their types.
        injected: What the session gives instead of the model, by parameter.
        text: The docstring without the descriptions of arguments.
        format: Reads the arguments that a model sends.
    """

    basis: list[object] | None
    parameters: dict[str, inspect.Parameter]
    hints: dict[str, Any]
    injected: dict[str, str]
    text: str
    format: AnswerFormat[dict[str, Any]]


def _read_function(function: Any, name: str) -> _ReadFunction:
    """Read a function, once for all sessions that it is a tool of, unless it has changed.

    Raises:
        TypeError: A model could not call it.
    """
    basis = _basis_of(function, name)
    kept = None if basis is None else getattr(function, _READ, None)
    if isinstance(kept, _ReadFunction) and _are_same(kept.basis, basis):
        return kept
    parameters, hints = _parameters_of(name, function), _hints_of(name, function)
    injected = {
        key: what for key in parameters if (what := _injected_for(hints.get(key))) is not None
    }
    text, texts = _documentation(function)
    arguments = {
        key: Argument(
            type=hints.get(key, Any), default=parameter.default, description=texts.get(key, "")
        )
        for key, parameter in parameters.items()
        if key not in injected
    }
    try:
        answer_format = arguments_format(name, arguments)
    except TypeError as error:
        raise TypeError(f"tool {name!r}: {error}") from error
    read = _ReadFunction(
        basis=basis,
        parameters=parameters,
        hints=hints,
        injected=injected,
        text=text,
        format=answer_format,
    )
    if basis is not None:
        setattr(function, _READ, read)
    return read


def _are_same(some: list[object] | None, others: list[object] | None) -> bool:
    # By identity: to compare defaults is foreign code, and 1 is not True.
    return (
        some is not None
        and others is not None
        and len(some) == len(others)
        and all(map(operator.is_, some, others))
    )


def _basis_of(function: Any, name: str) -> list[object] | None:
    """Return the parts of a function that a tool is made of; None if it is no plain function, which is read each time."""
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        return None
    try:
        hints = function.__annotations__
    except Exception:  # noqa: BLE001 — from Python 3.14 on they are evaluated here
        return None
    named = function.__kwdefaults__ or {}
    defaults = function.__defaults__ or ()
    return [name, function.__code__, function.__doc__, *defaults, *named, *named.values(), *hints, *hints.values()]  # fmt: skip


def _injected_for(kind: Any) -> str | None:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    try:
        found = _INJECTED.get(members[0]) if len(members) == 1 else None
    except TypeError:  # not hashable
        return None
    if found is None and isinstance(members[0], type) and len(members) == 1:
        # The kernel's own classes fulfil these protocols and are what applications import.
        names = {
            base.__name__
            for base in members[0].__mro__
            if base.__module__.startswith("amplifier.kernel.")
        }
        ours = {"AmplifierSession": "session", "ModuleCoordinator": "coordinator"}
        return next((ours[name] for name in ours if name in names), None)
    return found


def _documentation(function: Any) -> tuple[str, dict[str, str]]:
    """What a docstring in Google, NumPy or Sphinx form states: the text, and the description of each argument."""
    function = _inside_partials(function)
    text = (
        inspect.getdoc(function if inspect.isroutine(function) else type(function).__call__) or ""
    )
    if not text:
        return "", {}
    try:
        from docstring_parser import parse  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise MissingExtraError(
            "a function as a tool", extra="providers", missing="docstring-parser"
        ) from error
    found = parse(text)
    parts = [part for part in (found.short_description, found.long_description) if part]
    return "\n\n".join(parts), {
        item.arg_name: " ".join((item.description or "").split()) for item in found.params
    }


def _result_of(name: str, value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    try:
        output = to_json(value)
        canonical_dumps(output)  # refuses NaN and lone surrogates
        return ToolResult(success=True, output=output)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"{name} returned a {type(value).__name__} that has no JSON form: {error}"
        return _refused(reason, "InvalidResult")


def _refused(message: str, kind: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": kind})
