"""One run of an agent from the command line, from the choice of its plan to its exit code; inside `anyio.run`.

Above: the commands `run` and `session resume`. Below: `_composition`, `_agent`, `_chat`.
"""

from __future__ import annotations

import json
import shlex
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier._json import visible_text
from amplifier.cli.core.error_messages import complaint, exit_code_of
from amplifier.cli.core.exit_codes import CommandError, Exit, OutputLostError
from amplifier.cli.core.turn_record import Outcome, TurnRecord, as_json
from amplifier.cli.sessions.home_folder import running_below
from amplifier.cli.sessions.running_tasks import answering
from amplifier.cli.sessions.store import SessionRecord, SessionStore, now
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.log_output import LogLines, send_logs_to
from amplifier.cli.terminal.output import StandardStreams
from amplifier.cli.terminal.screen import OutputFormat, Screen
from amplifier.errors import MissingExtraError
from amplifier.errors import ModuleNotFoundError as NoSuchModule
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.plan import check_plan

from .approvals import AllowEverything, ApprovalSystem, AskAtTerminal, DenyEverything
from .chat import Chat
from .default_plan import Composition, compose, place
from .signals import Stopper, heard_signals
from .terminal_agent import Agent, exit_code_for

__all__ = ["Job", "print_failure", "run_job"]

_TICK = 0.25
"""Seconds between two looks of the live lines at the clock."""


@attrs.frozen(kw_only=True)
class Job:
    """What the user asked for.

    Attributes:
        prompt: None for a chat.
        provider: As the user wrote it; None leaves the choice to the composition.
        resumed: The session to go on with; None for a new one.
        session_id: The new session's id.
    """

    store: SessionStore
    session_id: str
    prompt: str | None = None
    provider: str | None = None
    model: str | None = None
    plan: Path | None = None
    backend: str = "asyncio"
    output_format: OutputFormat = "text"
    resumed: SessionRecord | None = None
    yes: bool = False
    quiet: bool = False
    debug: bool = False


def run_job(job: Job) -> int:
    """Run it to its end and return the exit code; everything there is to say has been said then."""
    streams = StandardStreams()
    screen = Screen(streams, job.output_format, quiet=job.quiet)
    logged = send_logs_to(screen, debug=job.debug)
    if job.backend == "trio":
        _require_trio()
    performance = _Performance(job, streams, screen, logged)
    try:
        with answering(running_below(job.store.root.parent), job.session_id, job.backend, screen):
            anyio.run(performance.run, backend=job.backend)
    except BrokenPipeError:
        return Exit.BROKEN_PIPE
    except OutputLostError as error:
        screen.notice(f"amplifier: {error}", "error")
        return error.exit_code
    finally:
        if streams.out.is_lost:
            streams.silence()
    return performance.exit_code


def print_failure(error: Exception, output_format: OutputFormat) -> None:
    """The JSON object of a run that could not even be prepared; the message for people is the caller's."""
    outcome = Outcome(status="error", error=complaint(error), exception=error)
    trace = output_format == "json-trace"
    _print_object(StandardStreams(), as_json(outcome, TurnRecord(), exit_code=exit_code_of(error), trace=trace))


def _require_trio() -> None:
    try:
        import trio  # noqa: F401, PLC0415  # an extra: few need it, and asyncio is always there
    except ModuleNotFoundError as error:
        raise MissingExtraError("--backend trio", extra="trio", missing="trio") from error


class _Performance:
    """A job while it runs."""

    def __init__(self, job: Job, streams: StandardStreams, screen: Screen, logged: LogLines) -> None:
        self._job = job
        self._logged = logged
        self._streams = streams
        self._screen = screen
        self._keyboard = Keyboard() if Keyboard.is_there() else None
        self._agent: Agent | None = None
        self._outcome: Outcome | None = None
        self.exit_code: int = Exit.OK

    async def run(self) -> None:
        """Do the job; raises nothing but what is wrong with standard output."""
        self._stopper = Stopper(self._screen)
        problem: BaseException | None = None
        with anyio.open_signal_receiver(*heard_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._stopper.watch, signals)
                group.start_soon(self._tick)
                with self._stopper.scope:
                    try:
                        await self._run()
                    except Exception as error:  # noqa: BLE001  # told to the user below, outside of the group that would wrap it
                        problem = error
                group.cancel_scope.cancel()
        self._conclude(problem)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(_TICK)
            self._screen.draw_live_lines()

    async def _run(self) -> None:
        job = self._job
        composition = await self._compose()
        plan = place(composition.plan, sessions=job.store.root)
        session = AmplifierSession(
            plan,
            session_id=job.session_id,
            approval_system=self._approval_system(),
            display_system=self._screen,
            is_resumed=job.resumed is not None,
        )
        self._logged.hold_back()
        async with session:
            record = self._new_record(composition)
            agent = self._agent = Agent(session, job.store, record, self._screen, self._stopper)
            wanted = None if job.plan is None else job.provider
            agent.check(self._logged, lenient=_is_lenient(composition.plan), wanted=wanted)
            self._logged.show_held()
            self._introduce(composition)
            if job.prompt is None:
                assert self._keyboard is not None
                await Chat(agent, self._keyboard, self._streams.err).run()
            else:
                self._outcome = await agent.perform(job.prompt)

    async def _compose(self) -> Composition:
        job = self._job
        available = {info.id for info in await ModuleLoader().discover()}
        return compose(available, file=job.plan, provider=job.provider, model=job.model)

    def _approval_system(self) -> ApprovalSystem:
        if self._job.yes:
            return AllowEverything(self._screen)
        if self._keyboard is None or not self._streams.err.is_terminal:
            return DenyEverything(self._screen)
        return AskAtTerminal(self._screen, self._streams.err, self._keyboard, self._stopper)

    def _new_record(self, composition: Composition) -> SessionRecord:
        job = self._job
        known = job.resumed or SessionRecord(session_id=job.session_id, created=now(), directory=str(Path.cwd()))
        return attrs.evolve(
            known,
            provider=composition.provider,
            model=job.model,
            plan=None if job.plan is None else str(job.plan.absolute()),
            backend=job.backend,
        )

    def _introduce(self, composition: Composition) -> None:
        for note in composition.notes:
            self._screen.notice(note, "warning")
        if self._job.plan is not None:
            for warning in check_plan(composition.plan)[1]:
                self._screen.notice(visible_text(f"{self._job.plan.name}: {warning}", multiline=False), "warning")

    # ── the end ──

    def _conclude(self, problem: BaseException | None) -> None:
        """Everything is closed: say how it went and choose the exit code."""
        self._logged.show_held()
        if self._agent is None or self._agent.turns == 0:
            self._forget_empty_session()
        if isinstance(problem, BrokenPipeError):
            raise problem
        ended_by = self._stopper.ended_by
        if problem is not None:
            self._outcome = Outcome(status="error", error=self._words_about(problem), exception=problem)
            self.exit_code = exit_code_of(problem)
        elif ended_by is not None:
            said = self._said()
            self._outcome = Outcome(status="cancelled", response=said, error=f"ended by {ended_by.name}")
            self.exit_code = 128 + ended_by
        elif self._outcome is not None:
            self.exit_code = exit_code_for(self._outcome)
        self._report()

    def _words_about(self, problem: BaseException) -> str:
        # Without its loop or its memory a session does not look at the rest of its plan.
        said, plan = complaint(problem), self._job.plan
        if plan is not None and isinstance(problem, NoSuchModule):
            return f"{said} There may be more: amplifier plan check {shlex.quote(str(plan))}"
        return said

    def _said(self) -> str | None:
        """The answer as far as there is one, when a signal has ended everything."""
        if self._outcome is not None:
            return self._outcome.response
        return None if self._agent is None else self._agent.latest.unfinished or None

    def _forget_empty_session(self) -> None:
        """A session in which nothing was said is not worth listing."""
        job = self._job
        if (
            job.resumed is None
            and job.store.exists(job.session_id)
            and not job.store.transcript(job.session_id).messages
        ):
            with suppress(OSError, CommandError):
                job.store.delete(job.session_id)

    def _report(self) -> None:
        job, outcome = self._job, self._outcome
        if outcome is None:
            return
        if outcome.status == "error":
            self._screen.notice(f"amplifier: {outcome.error}", "error")
        elif outcome.status == "cancelled" and self._stopper.ended_by in (None, signal.SIGINT):
            self._tell_stopped()
        if job.debug and outcome.exception is not None:
            self._streams.err.line("".join(traceback.format_exception(outcome.exception)))
        files = {} if self._agent is None else self._agent.files()
        if job.output_format == "text":
            self._tell_where(files)
        else:
            self._print_json(outcome, files)

    def _tell_stopped(self) -> None:
        agent = self._agent
        if agent is not None and agent.turns:
            # A context that keeps nothing on disk ends with this process, and the conversation with it.
            words = agent.words_about_stopping() if "transcript" in agent.files() else "Stopped."
            self._screen.notice(words, "warning")

    def _tell_where(self, files: dict[str, str]) -> None:
        agent = self._agent
        if agent is None or agent.turns == 0:
            return
        work = agent.latest
        counted = f"{len(work.tools)} tool call{'' if len(work.tools) == 1 else 's'}, {work.seconds:.1f} s"
        tokens = f", {agent.tokens} tokens" if agent.tokens else ""
        self._screen.notice(f"session {agent.session.session_id} ({counted}{tokens})")
        for name, path in files.items():
            self._screen.notice(f"{name} {path}")

    def _print_json(self, outcome: Outcome, files: dict[str, str]) -> None:
        agent = self._agent
        shown: dict[str, Any] = as_json(
            outcome,
            TurnRecord() if agent is None else agent.latest,
            session_id=None if agent is None or agent.turns == 0 else agent.session.session_id,
            exit_code=self.exit_code,
            files=files,
            trace=self._job.output_format == "json-trace",
        )
        _print_object(self._streams, shown)


def _is_lenient(plan: dict[str, Any]) -> bool:
    """Whether the plan says in so many words that its modules may fail."""
    session = plan.get("session")
    return isinstance(session, dict) and session.get("strict") is False


def _print_object(streams: StandardStreams, shown: dict[str, Any]) -> None:
    # Escaped to ASCII: valid in every encoding, and harmless if a terminal shows it.
    streams.out.write(json.dumps(shown, default=str) + "\n")
