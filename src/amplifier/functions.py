"""Functions as modules: `tool` marks a function as a tool, and `on` marks one as a hook."""

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
    SimpleMount,
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
_INJECTED: Mapping[object, str] = {
    Coordinator: "coordinator",
    Session: "session",
    CurrentCall: "call",
}
_KERNEL_CLASSES = {"AmplifierSession": "session", "ModuleCoordinator": "coordinator"}


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
    """The options of `tool`."""

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
    """A decorator that is a type error, for a call of `tool` with an unknown option.

    Without it, no overload would match, and the decorated function would lose its type.
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
    """Mark a function as a tool with options. Plans and `agent` also accept unmarked functions.

    Args:
        function: The function, if the decorator is used without parentheses.
        name: Name of the tool. The default is the function's name.
        description: Description for the model. The default is the text of the docstring.
        timeout: Seconds after which a call is cancelled. The model gets a result that says so.
        repeatable: Whether a call that was interrupted by the end of its process may run again.
        approve: Whether a person has to approve every call. A function of the same arguments
            decides about every call. If None, the session decides: one that asks before its tools
            run asks before this one.
        read_only: Whether the tool changes nothing. A session that asks before its tools run does
            not ask before this one.
        quick: Whether to call the function directly, not in a worker thread. It must be a function
            without ``async`` that neither waits nor computes for long.
        isolate: Whether to run the function in a worker process, which a stop or a timeout really
            ends. It must be a function without ``async`` at the top level of a module. Its
            arguments and its result are pickled.
        reconcile: ``async def fn(input, call)``. After a crash it reports the state of a call that
            was running: `Done`, `NotDone` or `Unknown` of `amplifier.contracts`.
    """
    tool_options = _read_options(ToolOptions, options, "@tool cannot be used")
    if tool_options.quick and tool_options.isolate:
        raise TypeError(
            "tool(quick=True, isolate=True): quick calls the function directly, and isolate in "
            "another process; use one of them"
        )

    def mark(marked: _F) -> _F:
        _check_function(marked)
        try:
            setattr(marked, _MARK, tool_options)
        # Bound methods and built-in functions cannot have attributes.
        except (AttributeError, TypeError):
            marked = functools.partial(marked)  # type: ignore[assignment]
            setattr(marked, _MARK, tool_options)
        return marked

    return mark if function is None else mark(function)


def check_cancelled() -> None:
    """Exit from a blocking function tool if its call was stopped or timed out.

    Call it between the steps of a function that runs in a thread. Elsewhere it does nothing.

    Raises:
        SystemExit: The call has ended, and its result would be dropped. It ends only this thread.
    """
    if is_call_over():
        raise SystemExit


def _read_options(cls: type[_O], options: Mapping[str, object], subject: str) -> _O:
    try:
        return read_arguments(cls, options, subject)
    except PlanError as error:
        raise TypeError(str(error)) from None


def _are_names(value: object) -> bool:
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return False
    return all(isinstance(name, str) and name for name in value)


@attrs.frozen(kw_only=True)
class HookOptions:
    """The options of `on`."""

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
        priority: Order of the handlers of an event. Lower numbers run first.
        fields: The fields of the payload that the function receives. The default is all.
        gate: Whether the event is denied if the function fails or returns None.

    Raises:
        TypeError: An argument cannot be used.
    """
    if not events or not _are_names(events):
        raise TypeError(f"expected names of events, as in @on('tool:pre'), got {events!r:.80}")
    arguments = {"events": events, "priority": priority, "fields": fields, "gate": gate, **unknown}
    options = _read_options(HookOptions, arguments, "@on cannot be used")
    for event in events:
        warn_of_misspelt_event(event, __name__)

    def mark(marked: _F) -> _F:
        setattr(marked, _HOOK_MARK, options)
        return marked

    return mark


def _hook_options(function: object) -> HookOptions | None:
    options = getattr(_inside_partials(function), _HOOK_MARK, None)
    return options if isinstance(options, HookOptions) else None


class FunctionTool:
    """A function as a tool of the contract.

    The schema comes from the function's type hints, and the descriptions from its docstring.
    Invalid arguments go back to the model with the path of every problem.

    Args:
        function: A function with type hints. It need not be marked by `tool`.
        coordinator: Coordinator for functions with an argument of type `Coordinator` or `Session`.

    Raises:
        TypeError: A model could not call the function.

    Attributes:
        name: Name of the tool.
        description: Description for the model.
        repeatable: Whether a call that was interrupted by the end of its process may run again.
        options: The options of `tool`.
        reconcile: Function that reports the state of an interrupted call, or None.
    """

    def __init__(
        self, function: Callable[..., Any], coordinator: Coordinator | None = None
    ) -> None:
        _check_function(function)
        mark = getattr(function, _MARK, None) or getattr(_inside_partials(function), _MARK, None)
        self.options: ToolOptions = mark if isinstance(mark, ToolOptions) else ToolOptions()
        self._function = function
        self._coordinator = coordinator
        self.name: str = self.options.name or _name_of(function)
        if not _NAME.fullmatch(self.name):
            raise TypeError(
                f"{self.name!r:.80} is not a name for a tool: expected letters, digits, _ and -; "
                "name it, as in tool(name='add')(function)"
            )
        self.repeatable: bool | None = self.options.repeatable
        self.reconcile: _Reconcile | None = self.options.reconcile
        self._is_async = _is_async(function)
        read = _read_function(function, self.name)
        if missing := [key for key in read.parameters if key not in read.hints]:
            _logger.warning(
                "tool %r: %s has no type hint, so a model may send anything for it; "
                "write one, as in %s: str",
                self.name,
                " and ".join(missing),
                missing[0],
            )
        self._injected = read.injected
        self._positional = {
            key: parameter.default
            for key, parameter in read.parameters.items()
            if parameter.kind is parameter.POSITIONAL_ONLY
        }
        if self.options.isolate and (reason := self._why_not_isolated()):
            raise TypeError(
                f"tool {self.name!r} cannot be isolated in a worker process, because {reason}"
            )
        self.description: str = self.options.description or read.text or self.name
        self._defaults = {
            key: parameter.default
            for key, parameter in read.parameters.items()
            if key not in read.injected and parameter.default is not inspect.Parameter.empty
        }
        self._format = read.format

    def _why_not_isolated(self) -> str | None:
        if self._is_async:
            return "it is async"
        if self._injected:
            return f"it gets its {next(iter(self._injected))!r} from the session"
        return why_not_isolated(_inside_partials(self._function))

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return json.loads(json.dumps(self._format.schema))  # type: ignore[no-any-return]

    def get_schema(self) -> dict[str, Any]:
        """Return `input_schema`. Some loops call this method."""
        return self.input_schema

    @property
    def annotations(self) -> dict[str, bool]:
        """Annotations of the tool as in the Model Context Protocol."""
        return {"readOnlyHint": True} if self.options.read_only else {}

    def needs_approval(self, arguments: object) -> bool | None:
        """Return whether a person has to approve a call, or None if the options don't say.

        If the application's function for this fails, approval is needed.
        """
        approve = self.options.approve
        if approve is None and self.options.read_only:
            return False
        if not callable(approve):
            return approve
        try:
            accepted = inspect.signature(approve).parameters
            defaults = {key: default for key, default in self._defaults.items() if key in accepted}
            return bool(approve(**defaults | self._format.read_value(arguments)))
        except Exception:  # noqa: BLE001 — the application's function; fails closed
            return True

    # The contract names the parameter.
    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        """Call the function with the model's arguments.

        Invalid arguments and a timeout become a result for the model. The function's own exceptions
        are raised.
        """
        try:
            values = self._format.read_value(input)
        except ResultError as error:
            problems = "; ".join(f"{path}: {problem}" for path, problem in error.problems)
            return _error_result(f"invalid input for {self.name}: {problems}", "InvalidInput")
        for key, name in self._injected.items():
            values[key] = self._inject(name)
        value: object = None
        timeout = self.options.timeout
        with anyio.move_on_after(timeout) as scope:
            value = await self._call(values)
        if scope.cancelled_caught:
            message = f"{self.name} took longer than {timeout:g} s and was stopped"
            return _error_result(message, "Timeout")
        return _result_of(self.name, value)

    def _inject(self, name: str) -> object:
        if name == "call":
            return current_call()
        if self._coordinator is None:
            raise RuntimeError(f"tool {self.name!r} needs a session: mount it in one")
        return self._coordinator if name == "coordinator" else self._coordinator.session

    async def _call(self, values: dict[str, object]) -> object:
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


def mount_tool(function: Callable[..., Any]) -> SimpleMount:
    """Return the mount function for a function that is a tool."""

    async def mount(coordinator: Coordinator, config: object) -> FunctionTool:
        function_tool = FunctionTool(function, coordinator)
        if function_tool.options.approve:
            _register_approval(coordinator, function_tool)
        return function_tool

    return mount


def mount_hook(function: Callable[..., Any]) -> SimpleMount:
    """Return the mount function for a function that `on` has marked."""
    options = _hook_options(function)
    signature = f"the function {_name_of(function)}{inspect.signature(function)}"
    if options is None:
        raise TypeError(f"{signature} without @on; name its events, as in @on('tool:pre')")
    if not can_call(function, "", {}):
        raise TypeError(f"{signature}; a hook takes (event, data)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{signature}, which yields; a hook returns a HookResult or None")

    async def mount(coordinator: Coordinator, config: object) -> Callable[[], None]:
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


def mount_functions(module: ModuleType) -> SimpleMount | None:
    """Return the mount function for a file with functions that `tool` and `on` have marked.

    It is None if the file has no such functions.

    Raises:
        TypeError: A function cannot be a tool.
    """
    own = [
        value
        for value in vars(module).values()
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
            function_tool = await mount_tool(function)(coordinator, config)
            await coordinator.mount("tools", function_tool, name=function_tool.name)
        return undo.close

    return mount


def _register_approval(coordinator: Coordinator, function_tool: FunctionTool) -> None:
    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        name, arguments = str(data.get("tool_name")), data.get("tool_input")
        mounted: Any = (coordinator.get("tools") or {}).get(name)
        # A budget wraps the tool in a meter.
        while hasattr(mounted, "__wrapped__"):
            mounted = mounted.__wrapped__
        if mounted is not function_tool and name != function_tool.name:
            return HookResult()
        if not function_tool.needs_approval(arguments):
            return HookResult()
        lets_pass = coordinator.get_capability("approval.lets_pass")
        # If hooks-approval does not let the call pass, it asks or denies itself.
        if lets_pass is not None and not await lets_pass(name, arguments):
            return HookResult()
        # ASCII only, because text of a model may have invisible or bidirectional characters.
        shown = json.dumps(arguments, ensure_ascii=True, sort_keys=True, default=repr)
        prompt = f"Allow {function_tool.name} with {shown}?"
        owner = coordinator.owner_of("tools", name)
        note_question(
            ApprovalQuestion(
                text=prompt,
                tool=name,
                arguments=arguments if isinstance(arguments, Mapping) else {"input": arguments},
                module=None if owner is None else owner.partition("#")[0],
                reason="the tool itself asks for it",
            )
        )
        return HookResult(action="ask_user", approval_prompt=prompt)

    unregister = coordinator.hooks.register(
        "tool:pre", ask, name=f"approve-{function_tool.name}", on_failure="deny"
    )
    coordinator.register_cleanup(unregister)


# ── reading functions ────────────────────────────────────────────────────────────────────────────


def _check_function(function: object) -> None:
    if isinstance(function, type):
        raise TypeError(f"expected a function, got the class {function.__name__}")
    if not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}")


def _is_async(function: object) -> bool:
    # An object may have an asynchronous `__call__`.
    method = getattr(_inside_partials(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


def _inside_partials(function: object) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: object) -> str:
    function = _inside_partials(function)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _hints_of(name: str, function: object) -> dict[str, object]:
    function = _inside_partials(function)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise TypeError(
            f"tool {name!r}: its type hints cannot be read: {error}; "
            "names in them must be importable from its module"
        ) from error


def _parameters_of(name: str, function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters by name, without those that a partial has filled."""
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
                f"tool {name!r} takes {stars}{parameter.name}; "
                "a model sends arguments by name, so write them out"
            )
    parameters = dict(signature.parameters)
    while isinstance(function, functools.partial):
        for key in function.keywords:
            parameters.pop(key, None)
        function = function.func
    return parameters


# An attribute of a function with its `_ReadFunction`, so that both are collected together.
_READ = "__amplifier_read__"


@attrs.frozen(kw_only=True)
class _ReadFunction:
    """The parts of a function that a tool is made of, which are the same in every session.

    Attributes:
        basis: The parts of the function that were read, to see whether they have changed.
        parameters: The parameters by name.
        hints: Their types.
        injected: Kinds of the arguments that come from the session instead of the model, by
            parameter.
        text: The docstring without the descriptions of arguments.
        format: Reads the arguments that a model sends.
    """

    basis: list[object] | None
    parameters: dict[str, inspect.Parameter]
    hints: dict[str, object]
    injected: dict[str, str]
    text: str
    format: AnswerFormat[dict[str, Any]]


def _read_function(function: Callable[..., object], name: str) -> _ReadFunction:
    """Read a function, once for all sessions unless it has changed.

    Raises:
        TypeError: A model could not call it.
    """
    basis = _basis_of(function, name)
    kept = None if basis is None else getattr(function, _READ, None)
    if isinstance(kept, _ReadFunction) and _are_same(kept.basis, basis):
        return kept
    parameters, hints = _parameters_of(name, function), _hints_of(name, function)
    injected = {
        key: kind for key in parameters if (kind := _injected_for(hints.get(key))) is not None
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
    # Comparing defaults would run foreign code, and take 1 for True.
    return (
        some is not None
        and others is not None
        and len(some) == len(others)
        and all(map(operator.is_, some, others))
    )


def _basis_of(function: object, name: str) -> list[object] | None:
    """Return the parts of a function that a tool is made of.

    The result is None for anything other than a plain function, which is read each time.
    """
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        return None
    try:
        hints = function.__annotations__
    # From Python 3.14 on, the annotations are evaluated here.
    except Exception:  # noqa: BLE001
        return None
    named = function.__kwdefaults__ or {}
    defaults = function.__defaults__ or ()
    own = [name, function.__code__, function.__doc__]
    return [*own, *defaults, *named, *named.values(), *hints, *hints.values()]


def _injected_for(kind: object) -> str | None:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    if len(members) != 1:
        return None
    try:
        name = _INJECTED.get(members[0])
    # It isn't hashable.
    except TypeError:
        return None
    if name is None and isinstance(members[0], type):
        # Applications import the kernel's classes, which implement these protocols.
        kernel_classes = {
            base.__name__
            for base in members[0].__mro__
            if base.__module__.startswith("amplifier.kernel.")
        }
        for cls, name_of_class in _KERNEL_CLASSES.items():
            if cls in kernel_classes:
                return name_of_class
    return name


def _documentation(function: object) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring and the descriptions of the arguments.

    The docstring may be in Google, NumPy or Sphinx style.
    """
    function = _inside_partials(function)
    documented = function if inspect.isroutine(function) else type(function).__call__
    text = inspect.getdoc(documented) or ""
    if not text:
        return "", {}
    try:
        from docstring_parser import parse  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise MissingExtraError(
            "a function as a tool", extra="providers", missing="docstring-parser"
        ) from error
    docstring = parse(text)
    parts = [part for part in (docstring.short_description, docstring.long_description) if part]
    return "\n\n".join(parts), {
        item.arg_name: " ".join((item.description or "").split()) for item in docstring.params
    }


def _result_of(name: str, value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    try:
        output = to_json(value)
        # This refuses NaN and lone surrogates.
        canonical_dumps(output)
        return ToolResult(success=True, output=output)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"{name} returned a {type(value).__name__} that has no JSON form: {error}"
        return _error_result(reason, "InvalidResult")


def _error_result(message: str, kind: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": kind})
