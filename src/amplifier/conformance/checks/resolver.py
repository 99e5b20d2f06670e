"""Checks of resolvers: signatures, results, errors, side effects and waiting."""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier.conformance.checks.registry import check
from amplifier.conformance.target.calls import Outcome, binding_error
from amplifier.conformance.target.mounted import CheckContext, MountedModule
from amplifier.conformance.target.process import audited, refused_access
from amplifier.conformance.target.resolver_samples import (
    EXECUTED,
    SAMPLES,
    UNKNOWN,
    Question,
    ask,
    holds_a_package,
    install_samples,
    is_not_found,
    locate,
    methods_of,
    questions_about,
    resolver_of,
)

RESOLVERS = ("resolver",)
Method = Callable[..., Any]


@check("R1", "R2", kind="structure", types=RESOLVERS, on=CheckContext.mount)
async def has_the_shape(mounted: MountedModule) -> None:
    """Read resolve and async_resolve and their parameters, and call them without a hint."""
    ctx = mounted.ctx
    resolver = resolver_of(mounted)
    if resolver is None:
        if mounted.returned is not None and not callable(mounted.returned):
            ctx.fault(
                "R1", f"{type(mounted.returned).__name__} has neither resolve nor async_resolve"
            )
        if mounted.mount_points:
            ctx.fault("R1", f"mount gave no resolver; it is at {', '.join(mounted.mount_points)}")
        return
    methods = methods_of(resolver)
    if not methods:
        ctx.fault("R1", f"{type(resolver).__name__} has neither resolve nor async_resolve")
    for method in methods:
        await _check_method(mounted, method, is_only=len(methods) == 1)


async def _check_method(mounted: MountedModule, method: Method, *, is_only: bool) -> None:
    ctx = mounted.ctx
    name = getattr(method, "__name__", "resolve")
    if binding_error(method, "tool-sample") is not None:
        ctx.fault(
            "R2", f"{name} cannot be called with a module id alone: {inspect.signature(method)}"
        )
        return
    if not _takes_hint(method):
        ctx.fault(
            "R1",
            f"{name} takes no hint: {inspect.signature(method)}; expected (module_id, hint=None)",
        )
    outcome = await mounted.call(method, UNKNOWN[0])
    if isinstance(outcome.error, TypeError) and ctx.location_of(outcome.error) is None:
        ctx.fault("R2", f"asked without a hint, {name} {outcome}")
    is_async = inspect.iscoroutinefunction(method) or outcome.is_async
    if name == "async_resolve" and not is_async:
        ctx.fault("R1", "async_resolve is not async")
    if name == "resolve" and is_async and is_only:
        ctx.fault("R1", "resolve is async; expected a plain function, or the name async_resolve")


def _takes_hint(method: Method) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except ValueError:
        return True
    if {"profile_hint", "source_hint"} & parameters.keys() or binding_error(
        method, "tool-sample", None
    ) is None:
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


# ── results ──


@check("R2", "R3", "R4", "R7", "R8", kind="behaviour", types=RESOLVERS, on=CheckContext.mount)
async def answers_ordinary_questions(mounted: MountedModule) -> None:
    """Ask for modules that exist and for some that don't, and check the results and errors."""
    ctx = mounted.ctx
    # Earlier additions to sys.path by the module are removed, so that a new one is noticed.
    own = ctx.loaded.target.search_path
    sys.path[:] = [
        entry for entry in sys.path if entry in _PATH or (own is not None and entry == str(own))
    ]
    before = _surroundings(mounted)
    for method in methods_of(resolver_of(mounted)):
        has_found = False
        for question in questions_about(ctx.loaded.target):
            located = await _check_result(mounted, method, question)
            # The resolver's own directories exist, because it has found another module.
            if has_found and question.hint is None and isinstance(located.error, FileNotFoundError):
                what = f"asked for {question} it {located}; expected ModuleNotFoundError"
                ctx.fault("R4", what, given=question.given, error=located.error)
            has_found |= located.returned
            _check_side_effects(mounted, before, question)
            if ctx.faults:
                return


@check("R6", kind="behaviour", types=RESOLVERS)
async def finds_what_is_new(ctx: CheckContext) -> None:
    """Add a module after mounting, and expect earlier questions about it to make no difference."""
    new = SAMPLES[1]
    for number in range(2):
        endings = []
        for is_asked_before in (False, True):
            async with ctx.mount() as mounted:
                methods = methods_of(resolver_of(mounted))[number:]
                if not methods:
                    return
                for path in list(mounted.directory.parent.rglob("*hooks[-_]other")):
                    shutil.rmtree(path, ignore_errors=True)
                if is_asked_before:
                    await mounted.call(locate, methods[0], Question(new), mounted.directory)
                install_samples(mounted.directory, ctx.loaded.target)
                endings.append(
                    await mounted.call(locate, methods[0], Question(new), mounted.directory)
                )
        if endings[0].returned and not endings[1].returned:
            what = (
                f"{new!r} was added while the session ran and is found, "
                f"but not after an earlier question about it: then it {endings[1]}"
            )
            ctx.fault(
                "R6",
                what,
                given=Question(new).given,
                error=endings[1].error,
            )
            return


async def _check_result(mounted: MountedModule, method: Method, question: Question) -> Outcome:
    """Ask one question and resolve the source to a directory."""
    ctx, given = mounted.ctx, question.given
    answered = await mounted.call(ask, method, question, mounted.directory)
    is_unknown = question.module_id not in SAMPLES and question.hint is None
    if not answered.returned:
        _check_error(ctx, answered, question)
        await _check_without_hint(mounted, method, question, answered)
        return answered
    source, located = answered.value, answered
    found, expected = f"asked for {question} it answered", "a ModuleSource or ModuleNotFoundError"
    is_source = not isinstance(source, (str, type)) and callable(getattr(source, "resolve", None))
    if is_source:
        located = await mounted.call(source.resolve)
        if not located.returned:
            _check_error(ctx, located, question)
            return located
        found, expected = f"asked for {question}, its source resolved to", "a Path"
    path, wrong = located.value, ""
    if not is_source or not isinstance(path, Path):
        is_unknown = is_unknown and path is None
        wrong = f"{_shown(path)}; expected {expected}"
    elif not path.is_dir():
        kind = "a file" if path.exists() else "nothing at all"
        wrong = f"{_relative(mounted, path)}, where there is {kind}"
    elif not holds_a_package(path):
        wrong = f"{_relative(mounted, path)}, which holds no package"
    if wrong:
        ctx.fault("R4" if is_unknown else "R3", f"{found} {wrong}", given=given)
    return located


def _check_error(ctx: CheckContext, outcome: Outcome, question: Question) -> None:
    error = outcome.error
    if outcome.kind == "late":
        ctx.fault("R4", f"asked for {question} it {outcome}", given=question.given)
    elif not is_not_found(error) and not isinstance(error, OSError):
        what = f"asked for {question} it {outcome}; expected ModuleNotFoundError"
        ctx.fault("R4", what, given=question.given, error=error)
    elif is_not_found(error) and question.module_id not in str(error):
        what = f"the error does not name the module {question.module_id!r}: {error}"
        ctx.fault("R8", what, given=question.given, error=error)


async def _check_without_hint(
    mounted: MountedModule, method: Method, question: Question, outcome: Outcome
) -> None:
    """Report an unexpected error that a hint avoids."""
    if (
        question.hint is not None
        or is_not_found(outcome.error)
        or isinstance(outcome.error, OSError)
    ):
        return
    hinted = await mounted.call(
        ask, method, Question(question.module_id, "a path"), mounted.directory
    )
    if type(hinted.error) is not type(outcome.error):
        what = f"asked for {question} without a hint it {outcome}, with one it {hinted}"
        mounted.ctx.fault("R2", what, given={"module_id": question.module_id}, error=outcome.error)


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return (
        f"{value!r}"
        if value is None or isinstance(value, (str, bool, int))
        else type(value).__name__
    )


def _relative(mounted: MountedModule, path: Any) -> str:
    return str(path).replace(str(mounted.directory.parent), "…")


# ── side effects ──


def _surroundings(mounted: MountedModule) -> dict[str, Any]:
    """Read the state that resolving must not change."""
    core = mounted.session.coordinator
    return {
        "sys.path": list(sys.path),
        "the working directory": str(Path.cwd()),
        "the mount points": {name: repr(what) for name, what in core.to_dict().items()},
        "the hooks": core.hooks.list_handlers(),
        "the channels": {name: len(channel) for name, channel in core.channels.items()},
        "the plan": repr(core.config),
    }


_PATH = tuple(sys.path)
"""The value of sys.path before any module was loaded."""


def _check_side_effects(mounted: MountedModule, before: dict[str, Any], question: Question) -> None:
    for name, now in _surroundings(mounted).items():
        if now != before[name]:
            mounted.ctx.fault("R7", f"asked for {question} it changed {name}", given=question.given)
            return
    executed = any(path.is_file() for path in mounted.directory.parent.rglob(EXECUTED))
    imported = [name for name in sys.modules if name.split(".")[0].startswith("amplifier_module_")]
    if executed or any(sample.replace("-", "_") in name for name in imported for sample in SAMPLES):
        mounted.ctx.fault(
            "R7", f"asked for {question} it ran the code of the module", given=question.given
        )


# ── errors of the filesystem ──


@check("R5", kind="behaviour", types=RESOLVERS)
async def passes_trouble_on(ctx: CheckContext) -> None:
    """Let the file system refuse every access, and check the error."""
    for question in (Question(SAMPLES[0]), Question(SAMPLES[0], "a path")):
        async with ctx.mount() as mounted:
            for method in methods_of(resolver_of(mounted)):
                with refused_access(mounted.directory.parent) as refused:
                    outcome = await mounted.call(locate, method, question, mounted.directory)
                # The resolver did not access anything.
                if not refused:
                    continue
                if (
                    outcome.kind == "raised"
                    and not isinstance(outcome.error, OSError)
                    and _is_hidden(outcome.error)
                ):
                    what = (
                        "the file system refused with PermissionError, "
                        f"and asked for {question} it {outcome}"
                    )
                    ctx.fault("R5", what, given=question.given, error=outcome.error)
                    return
                if outcome.returned and not isinstance(outcome.value, Path):
                    shown = _shown(outcome.value)
                    what = f"the file system refused, and asked for {question} it gave {shown}"
                    ctx.fault("R5", what, given=question.given)
                    return


def _is_hidden(error: BaseException | None) -> bool:
    """Return whether an error hides the PermissionError.

    A ModuleNotFoundError does so only if the PermissionError is its cause.
    """
    if not is_not_found(error):
        return True
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or error.__context__
        if isinstance(error, PermissionError):
            return True
    return False


# ── waiting ──

_WAITING = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "urllib.Request",
    "time.sleep",
)


@check("R9", kind="hygiene", types=RESOLVERS, on=CheckContext.mount)
async def offers_to_be_awaited(mounted: MountedModule) -> None:
    """Require an async_resolve if resolve starts programs, opens connections or sleeps."""
    ctx = mounted.ctx
    resolver = resolver_of(mounted)
    if not methods_of(resolver) or callable(getattr(resolver, "async_resolve", None)):
        return
    for question in questions_about(ctx.loaded.target):
        with audited(*_WAITING) as seen:
            await mounted.call(locate, methods_of(resolver)[0], question, mounted.directory)
        if seen:
            event = seen[0].partition(" ")[0]
            what = f"asked for {question}, resolve waits ({event}), and there is no async_resolve"
            ctx.fault("R9", what, given=question.given)
            return
