"""A mounted: the subject mounted in a real session of its own, with directories of its own, and what to do with it.

Every check that runs the subject gets a fresh mounted, so that none sees what another one did. The subject is mounted by
hand, because the kit is stricter than the kernel: what the kernel would forgive has to be seen. Above stand the checks;
below stand the kernel and the doubles.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import anyio
import attrs

from amplifier.conformance.target.load import LoadedSubject
from amplifier.contracts import CONTRACTS
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.testing import EventRecorder, MockApprovalSystem, MockContextManager, MockDisplaySystem

from .clause_coverage import StepCoverage
from .cpu_clock import slowdown, unstalled_time
from .llm_server_process import SERVICE, service_address
from .resolver_sources import install_samples, resolver_of

OWNER = "subject"
MOUNT_SECONDS = 20.0
CALL_SECONDS = 5.0
CLEANUP_SECONDS = 10.0
"""The kernel's default deadline for one cleanup."""
CANCEL_GRACE = 4.0
"""Seconds after its cancellation at which a call counts as never ending."""

_UNENDING: set[str] = set()
"""Subjects whose cleanup did not end in time when it was called only to tidy up."""

CANARY = "canary.txt"
"""A file of the user's in the mounted's directory; it must be there, unchanged, to the end."""


@attrs.frozen(kw_only=True)
class Fault:
    """A broken promise as a check sees it; the runner makes a `Finding` of it."""

    clause: str
    what: str
    input: Any = None
    cancelled_at: str | None = None
    location: str | None = None


@attrs.frozen(kw_only=True)
class Outcome:
    """How a call of foreign code ended.

    Attributes:
        kind: ``returned``, ``raised``, or ``late`` when it was cancelled after its time.
        seconds: How long it took.
    """

    kind: Literal["returned", "raised", "late"]
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def returned(self) -> bool:
        """Whether the call returned in time."""
        return self.kind == "returned"

    def __str__(self) -> str:
        if self.kind == "raised":
            return f"raised {type(self.error).__name__}: {str(self.error)[:200]}"
        if self.kind == "late":
            return f"did not end within {self.seconds:.1f} s"
        return f"returned {type(self.value).__name__}"


class MountFailed(Exception):
    """The subject could not be mounted, so that nothing else can be said about it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"mount {outcome}")
        self.outcome = outcome


@attrs.define(kw_only=True, eq=False)
class MountedModule:
    """The subject on ctx.

    Attributes:
        ctx: Where it stands; faults are reported there.
        session: The session around it.
        coordinator: The coordinator as the subject sees it.
        returned: What mount returned; for a structured mount what it yielded.
        is_structured: Whether mount is an async context manager.
        directory: A directory of this mounted's own; the working directory while it lasts.
        temporary: Where temporary files go.
        events: What was emitted, by anybody.
        is_cleaned: The cleanup that mount returned has been called.
    """

    ctx: CheckContext
    session: AmplifierSession
    coordinator: Any
    directory: Path
    temporary: Path
    events: EventRecorder
    returned: Any = None
    is_structured: bool = False
    is_cleaned: bool = False
    _leave: Callable[[], Any] | None = None

    @property
    def loaded(self) -> LoadedSubject:
        """The loaded module."""
        return self.ctx.loaded

    async def call(
        self, function: Callable[..., Any], *args: Any, seconds: float = CALL_SECONDS, **kwargs: Any
    ) -> Outcome:
        """Call foreign code, sync or async, for a limited time; never raises but for a cancellation from outside.

        Code that goes on after that time, ignoring its cancellation or blocking the loop, ends the process.
        """
        with self.ctx.alarm(seconds + CANCEL_GRACE):
            return await call_with_deadline(function, *args, seconds=seconds, **kwargs)

    # ── the subject's parts ──

    @property
    def instances(self) -> dict[str, Any]:
        """What the subject mounted at the mount point of its type, by name."""
        point = CONTRACTS[self.loaded.module_type].mount_point  # type: ignore[index]  # checked when it was loaded
        mounts = self.session.coordinator.mounts
        return {name or point: module for at, name, module in mounts.mounted_by(OWNER) if at == point}

    @property
    def instance(self) -> Any:
        """The first of them; None if mount declined."""
        return next(iter(self.instances.values()), None)

    @property
    def registrations(self) -> list[Any]:
        """The handlers that the subject has registered and not removed."""
        return self.session.coordinator.hooks.registrations_of(OWNER)

    @property
    def is_present(self) -> bool:
        """Whether anything of the subject is there to be looked at."""
        if self.loaded.module_type == "resolver":
            return resolver_of(self) is not None
        return bool(self.registrations if self.loaded.module_type == "hook" else self.instances)

    @property
    def cleanup(self) -> Callable[..., Any] | None:
        """What mount returned, if that is a cleanup."""
        if self.returned is None or self.is_structured or self.returned in self.instances.values():
            return None
        return self.returned if callable(self.returned) else None

    async def close(self) -> None:
        """End the subject the way the kernel would, but without looking."""
        cleanup, name = self.cleanup, self.loaded.subject.target
        if cleanup is not None and not self.is_cleaned and name not in _UNENDING:
            self.is_cleaned = True
            outcome = await self.call(cleanup, seconds=CALL_SECONDS)
            if outcome.kind == "late":
                _UNENDING.add(name)  # or every mounted would wait for it
        await self.session.coordinator.undo(OWNER)


@attrs.define(kw_only=True, eq=False)
class CheckContext:
    """What a check is given: it opens scenes, and takes what the check finds.

    Attributes:
        loaded: The subject.
        backend: What the event loop is.
        seed: For whatever is drawn.
        points: How many suspension points of a call are tried at most.
        case: What was drawn for the check, if it draws cases; JSON values.
        faults: What was found.
        notes: What limits the result.
        abort: Called with a fault when the subject cannot be stopped and the process has to end.
        coverage: What the check gets to see; the stages that a check makes of this one share it.
    """

    loaded: LoadedSubject
    backend: str
    seed: int = 0
    points: int = 25
    case: Any = None
    faults: list[Fault] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    abort: Callable[[Fault], NoReturn] | None = None
    coverage: StepCoverage = attrs.field(factory=StepCoverage)

    @asynccontextmanager
    async def mount(
        self,
        *,
        config: dict[str, Any] | None = None,
        ready: bool = True,
        beside: MountedModule | None = None,
        neighbour: MountedModule | None = None,
    ) -> AsyncIterator[MountedModule]:
        """Mount the subject in a session of its own; it is closed and its directories are removed at the end.

        Args:
            config: What to mount it with; left out, what it was loaded with.
            ready: Whether to call its on_session_ready.
            beside: A mounted whose directories this one shares, as a second session of the same user would.
            neighbour: A mounted whose home this one shares, as a session of the same user elsewhere would.

        Raises:
            MountFailed: Mount raised, or did not end in time.
        """
        places = private_directories(neighbour) if beside is None else nullcontext((beside.directory, beside.temporary))
        with ExitStack() as closing, places as (directory, temporary):
            session = AmplifierSession(
                {**self.loaded.plan, "session": {"orchestrator": "loop-stand-in", "context": "context-stand-in"}},
                loader=ModuleLoader(modules={"loop-stand-in": _mount_no_loop, "context-stand-in": _mount_context}),
                approval_system=MockApprovalSystem(),
                display_system=MockDisplaySystem(),
            )
            if self.loaded.module_type == "resolver":
                install_samples(directory, self.loaded.subject)
            async with session:
                mounted = MountedModule(
                    ctx=self,
                    session=session,
                    coordinator=session.coordinator.view_for(OWNER),
                    directory=directory,
                    temporary=temporary,
                    events=EventRecorder(),
                )
                mounted.events.listen(session.coordinator.hooks)
                self.coverage.tried = True
                await mount_subject(mounted, self.loaded.config if config is None else config)
                if ready and self.loaded.on_session_ready is not None:
                    await mounted.call(self.loaded.on_session_ready, mounted.coordinator)
                self.coverage.present |= mounted.is_present
                try:
                    yield mounted
                finally:
                    closing.enter_context(self.alarm(CLEANUP_SECONDS * 2, "A12", "closing the session"))
                    await mounted.close()

    # ── saying ──

    def fault(
        self,
        clause: str,
        what: str,
        *,
        given: Any = None,
        cancelled_at: str | None = None,
        location: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Write down a broken promise; the place in the module is found from an error that was raised there."""
        if location is None and error is not None:
            location = self.location_of(error)
        self.faults.append(
            Fault(clause=clause, what=what, input=given, cancelled_at=cancelled_at or None, location=location)
        )

    def expect(self, condition: object, clause: str, what: str, **details: Any) -> bool:
        """Write down a fault unless the condition holds."""
        if not condition:
            self.fault(clause, what, **details)
        return bool(condition)

    def fill_input(self, given: Any) -> None:
        """Name what was given, for those faults that do not say it yet."""
        self.faults[:] = [attrs.evolve(each, input=given) if each.input is None else each for each in self.faults]

    def location_of(self, error: BaseException) -> str | None:
        """The innermost line of the subject that an error came through."""
        place = None
        for frame, line in traceback.walk_tb(error.__traceback__):
            if self.loaded.subject.owns(frame.f_code.co_filename):
                place = f"{Path(frame.f_code.co_filename).name}:{line}"
        return place

    # ── the last resort ──

    @contextmanager
    def alarm(self, seconds: float, clause: str = "A8", what: str = "a cancelled call") -> Iterator[None]:
        """End the process if what is inside takes longer: code that refuses to be stopped can be ended no other way.

        The clause that is blamed is A17 when the subject is found running, the one given when it waits.
        """
        if self.abort is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        words, started = self.abort, unstalled_time()

        def ring(signum: int, frame: FrameType | None) -> None:
            left = seconds - (unstalled_time() - started)
            if left > 0:  # it was not given the time
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.5))
                return
            line = self._subject_line(frame)
            blamed = clause if line is None else "A17"
            text = (
                f"{what} had not ended {seconds:g} s later" if line is None else "the event loop was blocked for good"
            )
            words(Fault(clause=blamed, what=text, input=self.case, location=line))

        previous = signal.signal(signal.SIGALRM, ring)
        left, _ = signal.setitimer(signal.ITIMER_REAL, seconds * slowdown())
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left)  # an alarm around this one goes on, a little later
            signal.signal(signal.SIGALRM, previous)

    def _subject_line(self, frame: FrameType | None) -> str | None:
        while frame is not None:
            if self.loaded.subject.owns(frame.f_code.co_filename):
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return None


async def call_with_deadline(
    function: Callable[..., Any], *args: Any, seconds: float = CALL_SECONDS, **kwargs: Any
) -> Outcome:
    """Call foreign code as `MountedModule.call` does, but without an alarm, of which there is only one at a time."""
    started = unstalled_time()
    with anyio.CancelScope() as scope:
        scope.deadline = anyio.current_time() + seconds * slowdown()
        try:
            answer = function(*args, **kwargs)
            if inspect.isawaitable(answer):
                answer = await answer
        except BaseException as error:  # foreign code: it may exit, or invent a cancellation
            if isinstance(error, anyio.get_cancelled_exc_class()) and _is_cancelled():
                raise
            return Outcome(kind="raised", error=error, seconds=unstalled_time() - started)
        return Outcome(kind="returned", value=answer, seconds=unstalled_time() - started)
    return Outcome(kind="late", seconds=unstalled_time() - started)


def _is_cancelled() -> bool:
    return anyio.current_effective_deadline() == -math.inf


async def mount_subject(mounted: MountedModule, config: dict[str, Any]) -> None:
    """Call mount and take what it gives.

    Raises:
        MountFailed: It raised, or did not end in time.
    """
    settings = fill_placeholders(config, mounted.directory)
    outcome = await mounted.call(_call_mount, mounted, settings, seconds=MOUNT_SECONDS)
    if not outcome.returned:
        raise MountFailed(outcome)


async def _call_mount(mounted: MountedModule, config: dict[str, Any]) -> None:
    core = mounted.session.coordinator
    answer = mounted.loaded.mount(mounted.coordinator, config)
    if hasattr(type(answer), "__aenter__") and hasattr(type(answer), "__aexit__"):
        mounted.is_structured = True
        mounted.returned, mounted._leave = await core.hosting.host(answer, name=OWNER, owner=OWNER)
    else:
        mounted.returned = await answer if inspect.isawaitable(answer) else answer
    contract = CONTRACTS[mounted.loaded.module_type]  # type: ignore[index]  # checked when it was loaded
    result = mounted.returned
    if result is None or isinstance(result, type) or contract.module_type in ("hook", "resolver"):
        return
    if isinstance(result, contract.protocol) and result not in mounted.instances.values():
        core.mount_as(OWNER, contract.mount_point, result)


def configs_to_try(ctx: CheckContext) -> list[dict[str, Any]]:
    """With the settings that were guessed and, if it can be mounted without them, with those that were given.

    Where a module is told to keep its files it may do well, and badly where it chooses the place itself.
    """
    loaded = ctx.loaded
    return [loaded.config, loaded.given] if loaded.given != loaded.config else [loaded.config]


def fill_placeholders(config: Any, directory: Path) -> Any:
    """A configuration with ``{directory}`` and ``{service}`` filled in."""
    if isinstance(config, str):
        served = config.replace(SERVICE, service_address()) if SERVICE in config else config
        return served.replace("{directory}", str(directory))
    if isinstance(config, dict):
        return {key: fill_placeholders(value, directory) for key, value in config.items()}
    if isinstance(config, list):
        return [fill_placeholders(value, directory) for value in config]
    return config


async def _mount_no_loop(coordinator: Any, config: dict[str, Any]) -> None:
    coordinator.mount("orchestrator", _NoLoop())


class _NoLoop:
    async def execute(self, prompt: str, **given: Any) -> str:
        return ""


async def _mount_context(coordinator: Any, config: dict[str, Any]) -> None:
    coordinator.mount("context", MockContextManager())


@contextmanager
def private_directories(neighbour: MountedModule | None = None) -> Iterator[tuple[Path, Path]]:
    """A working directory with the user's canary in it, a home and a place for temporary files, all gone afterwards.

    Temporary files get the same names in every mounted, so that what one holds can be compared with what another does.

    With a neighbour, home and temporary files are where that mounted has them.
    """
    before = Path.cwd()
    saved = {name: os.environ.get(name) for name in ("HOME", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="mounted-", ignore_cleanup_errors=True) as root:
        directory, home, temporary = Path(root, "work"), Path(root, "home"), Path(root, "tmp")
        for folder in (directory, home, temporary):
            folder.mkdir()
        (directory / CANARY).write_text("this file belongs to the user\n", encoding="utf-8")
        if neighbour is not None:
            home, temporary = neighbour.directory.parent / "home", neighbour.temporary
        os.environ["HOME"], os.environ["TMPDIR"] = str(home), str(temporary)
        tempfile.tempdir = None  # so that TMPDIR is read again
        names = tempfile._name_sequence  # type: ignore[attr-defined]  # there is no other way to name them
        tempfile._name_sequence = map("{:08d}".format, itertools.count())  # type: ignore[attr-defined]
        os.chdir(directory)
        try:
            yield directory, temporary
        finally:
            os.chdir(before)
            for name, value in saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            tempfile.tempdir = None
            tempfile._name_sequence = names  # type: ignore[attr-defined]
