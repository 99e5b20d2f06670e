"""What every resolver promises: how it can be asked, what it answers, what it raises, and what it leaves alone."""

from __future__ import annotations

import builtins
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from amplifier.conformance.harness.calls import Outcome
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import OWNER, CheckContext, MountedModule
from amplifier.conformance.harness.resolver_sources import (
    EXECUTED,
    SAMPLES,
    UNHEARD_OF,
    Question,
    ask,
    holds_a_package,
    is_not_found,
    locate,
    methods_of,
    questions_about,
    resolver_of,
)

RESOLVERS = ("resolver",)


# ── shape ──


@check("R1", "R2", kind="structure", types=RESOLVERS)
async def has_the_shape(ctx: CheckContext) -> None:
    """Looks at resolve and async_resolve and their parameters, and asks without a hint."""
    async with ctx.mount() as mounted:
        resolver = resolver_of(mounted)
        if resolver is None:
            if mounted.returned is not None and not callable(mounted.returned):
                ctx.fault("R1", f"{type(mounted.returned).__name__} has neither resolve nor async_resolve")
            elsewhere = sorted({repr(point) for point, _, _ in mounted.session.coordinator.mounts.mounted_by(OWNER)})
            if elsewhere:
                ctx.fault("R1", f"mount gave no resolver; it is at {', '.join(elsewhere)}")
            return
        methods = methods_of(resolver)
        if not methods:
            ctx.fault("R1", f"{type(resolver).__name__} has neither resolve nor async_resolve")
        for method in methods:
            await _judge_method(ctx, mounted, resolver, method)


async def _judge_method(ctx: CheckContext, mounted: MountedModule, resolver: Any, method: Callable[..., Any]) -> None:
    name = method.__name__ if hasattr(method, "__name__") else "resolve"
    if not _binds(method, "tool-sample"):
        ctx.fault("R2", f"{name} cannot be called with a module id alone: {inspect.signature(method)}")
        return
    if not _takes_hint(method):
        ctx.fault("R1", f"{name} takes no hint: {inspect.signature(method)}; expected (module_id, hint=None)")
    outcome = await mounted.call(method, UNHEARD_OF[0])
    for wrong in [outcome.error] if isinstance(outcome.error, TypeError) else []:
        if ctx.location_of(wrong) is None:
            ctx.fault("R2", f"asked without a hint, {name} {outcome}")
    is_async = inspect.iscoroutinefunction(method) or inspect.isawaitable(_called(method))
    if name == "async_resolve" and not is_async:
        ctx.fault("R1", "async_resolve is not async")
    if name == "resolve" and is_async and len(methods_of(resolver)) == 1:
        ctx.fault("R1", "resolve is async; expected a plain function, or the name async_resolve")


def _called(method: Callable[..., Any]) -> Any:
    """What calling it gives, not awaited; None if it raises."""
    try:
        answer = method(UNHEARD_OF[0])
    except Exception:  # noqa: BLE001 — foreign code; what it raises is for other checks
        return None
    if inspect.iscoroutine(answer):
        answer.close()
    return answer


def _binds(method: Callable[..., Any], *given: Any) -> bool:
    try:
        inspect.signature(method).bind(*given)
    except TypeError:
        return False
    except ValueError:  # no signature
        return True
    return True


def _takes_hint(method: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except ValueError:
        return True
    named = any(name in parameters for name in ("profile_hint", "source_hint"))
    return named or _binds(method, "tool-sample", None) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


# ── answers ──


@check("R2", "R3", "R4", "R7", "R8", kind="behaviour", types=RESOLVERS)
async def answers_ordinary_questions(ctx: CheckContext) -> None:
    """Asks for modules that are there and for some that are nowhere, and looks at what comes back or is raised."""
    async with ctx.mount() as mounted:
        resolver = resolver_of(mounted)
        if resolver is None:
            return
        _tidy_path(ctx)
        before = _surroundings(mounted)
        for method in methods_of(resolver):
            found = False
            for question in questions_about(ctx.loaded.subject):
                found |= await judge_answer(ctx, mounted, method, question, found)
                _judge_traces(ctx, mounted, before, question)
                if ctx.faults:
                    return


async def judge_answer(
    ctx: CheckContext, mounted: MountedModule, method: Callable[..., Any], question: Question, found: bool = False
) -> bool:
    """One question, all the way to a directory; gives whether the module was found.

    ``found`` says that another module was, so that the resolver's own places are there.
    """
    before = len(ctx.faults)
    located = await _judge_located(ctx, mounted, method, question)
    if located.kind == "raised" and found and isinstance(located.error, FileNotFoundError) and question.hint is None:
        what = f"asked for {question} it {located}; expected ModuleNotFoundError"
        ctx.fault("R4", what, given={"module_id": question.module_id, "hint": None}, error=located.error)
    return located.returned and len(ctx.faults) == before


async def _judge_located(
    ctx: CheckContext, mounted: MountedModule, method: Callable[..., Any], question: Question
) -> Outcome:
    given = {"module_id": question.module_id, "hint": question.hint}
    answered = await mounted.call(ask, method, question, mounted.directory)
    is_unknown = question.module_id not in SAMPLES and question.hint is None
    if not answered.returned:
        _judge_error(ctx, answered, question, given)
        await _judge_without_hint(ctx, mounted, method, question, answered)
        return answered
    source = answered.value
    if isinstance(source, (str, type)) or not callable(getattr(source, "resolve", None)):
        clause = "R4" if is_unknown and source is None else "R3"
        what = f"asked for {question} it answered {_shown(source)}; expected a ModuleSource or ModuleNotFoundError"
        ctx.fault(clause, what, given=given)
        return answered
    located = await mounted.call(source.resolve)
    if not located.returned:
        _judge_error(ctx, located, question, given)
        return located
    path = located.value
    if not isinstance(path, Path):
        what = f"asked for {question}, its source resolved to {_shown(path)}; expected a Path"
        ctx.fault("R4" if is_unknown and path is None else "R3", what, given=given)
    elif not path.is_dir():
        missing = "a file" if path.exists() else "nothing at all"
        what = f"asked for {question}, its source resolved to {_placeless(mounted, path)}, where there is {missing}"
        ctx.fault("R4" if is_unknown else "R3", what, given=given)
    elif not holds_a_package(path):
        what = f"asked for {question}, its source resolved to {_placeless(mounted, path)}, which holds no package"
        ctx.fault("R4" if is_unknown else "R3", what, given=given)
    return located


def _judge_error(ctx: CheckContext, outcome: Outcome, question: Question, given: Any) -> None:
    error = outcome.error
    if outcome.kind == "late":
        ctx.fault("R4", f"asked for {question} it {outcome}", given=given)
    elif not is_not_found(error) and not isinstance(error, OSError):
        what = f"asked for {question} it {outcome}; expected ModuleNotFoundError"
        ctx.fault("R4", what, given=given, error=error)
    elif is_not_found(error) and question.module_id not in str(error):
        ctx.fault("R8", f"the error does not name the module {question.module_id!r}: {error}", given=given, error=error)


async def _judge_without_hint(
    ctx: CheckContext, mounted: MountedModule, method: Callable[..., Any], question: Question, outcome: Outcome
) -> None:
    """An error of an unexpected kind that is not there with a hint comes from there being none."""
    if question.hint is not None or is_not_found(outcome.error) or isinstance(outcome.error, OSError):
        return
    hinted = await mounted.call(ask, method, Question(question.module_id, "a path"), mounted.directory)
    if type(hinted.error) is not type(outcome.error):
        what = f"asked for {question} without a hint it {outcome}, with one it {hinted}"
        ctx.fault("R2", what, given={"module_id": question.module_id}, error=outcome.error)


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{value!r}" if value is None or isinstance(value, (str, bool, int)) else type(value).__name__


def _placeless(mounted: MountedModule, path: Any) -> str:
    return str(path).replace(str(mounted.directory.parent), "…")


# ── side effects ──


def _surroundings(mounted: MountedModule) -> dict[str, Any]:
    """What resolving must leave as it is."""
    core = mounted.session.coordinator
    return {
        "sys.path": list(sys.path),
        "the working directory": str(Path.cwd()),
        "the mount points": {name: repr(what) for name, what in core.to_dict().items()},
        "the hooks": core.hooks.list_handlers(),
        "the channels": {name: len(each) for name, each in core.channels.items()},
        "the plan": repr(core.config),
    }


_PATH = tuple(sys.path)
"""As it was before any module was loaded."""


def _tidy_path(ctx: CheckContext) -> None:
    """Take away what the subject may have put on sys.path before anybody looked, so that it is seen to do so again."""
    own = ctx.loaded.subject.search_path
    sys.path[:] = [entry for entry in sys.path if entry in _PATH or (own is not None and entry == str(own))]


def _judge_traces(ctx: CheckContext, mounted: MountedModule, before: dict[str, Any], question: Question) -> None:
    given = {"module_id": question.module_id, "hint": question.hint}
    for name, now in _surroundings(mounted).items():
        if now != before[name]:
            ctx.fault("R7", f"asked for {question} it changed {name}", given=given)
            return
    executed = [path for path in mounted.directory.parent.rglob(EXECUTED) if path.is_file()]
    imported = [name for name in sys.modules if name.split(".")[0].startswith("amplifier_module_") and _is_sample(name)]
    if executed or imported:
        ctx.fault("R7", f"asked for {question} it ran the code of the module", given=given)


def _is_sample(name: str) -> bool:
    return any(each.replace("-", "_") in name for each in SAMPLES)


# ── the same answer ──


@check("R3", "R4", "R6", kind="behaviour", types=RESOLVERS, inputs="questions")
async def answers_the_same(ctx: CheckContext) -> None:
    """Asks drawn questions one after another, at once and alone; the answer may not depend on what was asked before."""
    questions = [Question(module_id, hint) for module_id, hint in ctx.case["questions"]]
    alone: dict[Question, str] = {}
    placed: set[Question] = set()
    for question in dict.fromkeys(questions):
        answers = []
        for _ in range(2):
            async with ctx.mount() as mounted:
                if not methods_of(resolver_of(mounted)):
                    return
                answers.append(await _answer(mounted, question))
        alone[question] = answers[0]
        # A name may be made from the place, which is another one in every mounted: a digest of a path, for instance.
        placed |= {question} if answers[0] != answers[1] else set()
    async with ctx.mount() as mounted:
        alone.update({question: await _answer(mounted, question) for question in alone if question in placed})
        for question in [*questions, *placed]:
            found = await _answer(mounted, question)
            if found != alone[question]:
                what = (
                    f"asked for {question} after other questions it gave {found}; asked first it gave {alone[question]}"
                )
                ctx.fault("R6", what)
                return
        await _ask_at_once(ctx, mounted, questions, alone)


async def _ask_at_once(
    ctx: CheckContext, mounted: MountedModule, questions: list[Question], alone: dict[Question, str]
) -> None:
    found: dict[Question, str] = {}

    async def note(question: Question) -> None:
        found[question] = await _answer(mounted, question, alarmed=False)

    with ctx.alarm(10.0, "A8", "questions asked at once"):
        async with anyio.create_task_group() as group:
            for question in alone:
                group.start_soon(note, question)
    for question, answer in found.items():
        if answer != alone[question]:
            ctx.fault("R6", f"asked for {question} together with others it gave {answer}; alone {alone[question]}")
            return


async def _answer(mounted: MountedModule, question: Question, *, alarmed: bool = True) -> str:
    """What a question comes to, in words that do not depend on the mounted."""
    method = methods_of(resolver_of(mounted))[0]
    if alarmed:
        outcome = await mounted.call(locate, method, question, mounted.directory)
    else:
        try:
            outcome = Outcome(kind="returned", value=await locate(method, question, mounted.directory))
        except Exception as error:  # noqa: BLE001 — foreign code
            outcome = Outcome(kind="raised", error=error)
    if outcome.kind == "raised":
        return f"a {type(outcome.error).__name__}"
    return "no answer in time" if outcome.kind == "late" else _placeless(mounted, outcome.value)


# ── trouble ──


@check("R5", kind="behaviour", types=RESOLVERS)
async def passes_trouble_on(ctx: CheckContext) -> None:
    """Lets the filesystem refuse everything, and looks at what is raised."""
    for question in (Question(SAMPLES[0]), Question(SAMPLES[0], "a path")):
        async with ctx.mount() as mounted:
            resolver = resolver_of(mounted)
            if resolver is None:
                return
            for method in methods_of(resolver):
                with refusing(mounted.directory.parent) as refused:
                    outcome = await mounted.call(locate, method, question, mounted.directory)
                if not refused:
                    continue  # it did not look
                given = {"module_id": question.module_id, "hint": question.hint}
                if outcome.kind == "raised" and not isinstance(outcome.error, OSError) and _is_hidden(outcome.error):
                    what = f"the filesystem refused with PermissionError, and asked for {question} it {outcome}"
                    ctx.fault("R5", what, given=given, error=outcome.error)
                    return
                if outcome.returned and not isinstance(outcome.value, Path):
                    what = f"the filesystem refused, and asked for {question} it gave {_shown(outcome.value)}"
                    ctx.fault("R5", what, given=given)
                    return


def _is_hidden(error: BaseException | None) -> bool:
    """Whether an error was made from ours; what only follows from looking and seeing nothing is no trouble."""
    if not is_not_found(error):
        return True
    seen = {id(error)}
    while error is not None:
        error = error.__cause__ or error.__context__
        if isinstance(error, PermissionError):
            return True
        if error is not None and id(error) in seen:
            return False
        seen.add(id(error))
    return False


_PATCHED = (
    (os, "stat"),
    (os, "lstat"),
    (os, "scandir"),
    (os, "listdir"),
    (os, "open"),
    (os, "mkdir"),
    (os, "readlink"),
    (io, "open"),
    (builtins, "open"),
)


@contextmanager
def refusing(root: Path) -> Iterator[list[str]]:
    """While this lasts, everything below a directory is refused, as to a user without the right; gives what was."""
    refused: list[str] = []
    originals = [(owner, name, getattr(owner, name)) for owner, name in _PATCHED]

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("path", kwargs.get("file", "."))
            if isinstance(path, (str, os.PathLike)) and str(Path(path).absolute()).startswith(str(root)):
                refused.append(str(path))
                raise PermissionError(13, "Permission denied", str(path))
            return original(*args, **kwargs)

        return guarded

    try:
        for owner, name, original in originals:
            setattr(owner, name, guard(original))
        yield refused
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


# ── waiting ──


@check("R9", kind="hygiene", types=RESOLVERS)
async def offers_to_be_awaited(ctx: CheckContext) -> None:
    """Watches whether resolving starts programs, opens connections or sleeps; then it should be offered as async."""
    async with ctx.mount() as mounted:
        resolver = resolver_of(mounted)
        if not methods_of(resolver) or callable(getattr(resolver, "async_resolve", None)):
            return
        for question in questions_about(ctx.loaded.subject):
            with watching() as seen:
                await mounted.call(locate, methods_of(resolver)[0], question, mounted.directory)
            if seen:
                what = f"asked for {question}, resolve waits ({seen[0]}), and there is no async_resolve"
                ctx.fault("R9", what, given={"module_id": question.module_id, "hint": question.hint})
                return


_WAITING = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "urllib.Request", "time.sleep")
_watched: list[list[str]] = []
_is_hooked: list[bool] = []


@contextmanager
def watching() -> Iterator[list[str]]:
    """Note the audit events of waiting while this lasts; an audit hook cannot be taken back, so there is only one."""
    if not _is_hooked:
        _is_hooked.append(True)
        sys.addaudithook(_notice)
    seen: list[str] = []
    _watched.append(seen)
    try:
        yield seen
    finally:
        _watched.remove(seen)


def _notice(event: str, args: tuple[Any, ...]) -> None:
    if _watched and event in _WAITING:
        _watched[-1].append(event)
