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
from amplifier.cli.core.error_messages import error_message, exit_code_of
from amplifier.cli.core.exit_codes import CommandError, Exit, OutputLostError
from amplifier.cli.core.turn_record import Outcome, TurnRecord, as_json
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionRecord, SessionStore, now
from amplifier.cli.terminal.display import Display, OutputFormat
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.log_output import LogNotices, install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import MissingExtraError
from amplifier.errors import ModuleNotFoundError as NoSuchModule
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.plan import check_plan

from .approvals import AllowEverything, ApprovalSystem, AskAtTerminal, DenyEverything
from .chat import Chat
from .default_plan import AgentPlan, build_plan, with_storage_paths
from .signals import SignalHandler, handled_signals
from .terminal_agent import TerminalAgent, exit_code_for

__all__ = ["RunRequest", "print_error_json", "run_agent"]

_TICK = 0.25
"""Seconds between two looks of the live lines at the clock."""


@attrs.frozen(kw_only=True)
class RunRequest:
    """What the user asked for.

    Attributes:
        prompt: None for a chat.
        provider: As the user wrote it; None leaves the choice to the agent_plan.
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


def run_agent(request: RunRequest) -> int:
    """Run it to its end and return the exit code; everything there is to say has been said then."""
    streams = StandardStreams()
    display = Display(streams, request.output_format, quiet=request.quiet)
    logged = install_log_handler(display, debug=request.debug)
    if request.backend == "trio":
        _require_trio()
    agent_run = _AgentRun(request, streams, display, logged)
    try:
        with answer_task_requests(
            running_folder(request.store.root.parent), request.session_id, request.backend, display
        ):
            anyio.run(agent_run.run, backend=request.backend)
    except BrokenPipeError:
        return Exit.BROKEN_PIPE
    except OutputLostError as error:
        display.notice(f"amplifier: {error}", "error")
        return error.exit_code
    finally:
        if streams.out.is_lost:
            streams.silence()
    return agent_run.exit_code


def print_error_json(error: Exception, output_format: OutputFormat) -> None:
    """The JSON object of a run that could not even be prepared; the message for people is the caller's."""
    outcome = Outcome(status="error", error=error_message(error), exception=error)
    trace = output_format == "json-trace"
    _print_object(StandardStreams(), as_json(outcome, TurnRecord(), exit_code=exit_code_of(error), trace=trace))


def _require_trio() -> None:
    try:
        import trio  # noqa: F401, PLC0415  # an extra: few need it, and asyncio is always there
    except ModuleNotFoundError as error:
        raise MissingExtraError("--backend trio", extra="trio", missing="trio") from error


class _AgentRun:
    """A request while it runs."""

    def __init__(self, request: RunRequest, streams: StandardStreams, display: Display, logged: LogNotices) -> None:
        self._request = request
        self._logged = logged
        self._streams = streams
        self._display = display
        self._keyboard = Keyboard() if Keyboard.is_there() else None
        self._agent: TerminalAgent | None = None
        self._outcome: Outcome | None = None
        self.exit_code: int = Exit.OK

    async def run(self) -> None:
        """Do the request; raises nothing but what is wrong with standard output."""
        self._signal_handler = SignalHandler(self._display)
        problem: BaseException | None = None
        with anyio.open_signal_receiver(*handled_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._signal_handler.watch, signals)
                group.start_soon(self._tick)
                with self._signal_handler.scope:
                    try:
                        await self._run()
                    except Exception as error:  # noqa: BLE001  # told to the user below, outside of the group that would wrap it
                        problem = error
                group.cancel_scope.cancel()
        self._conclude(problem)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(_TICK)
            self._display.draw_live_lines()

    async def _run(self) -> None:
        request = self._request
        agent_plan = await self._compose()
        plan = with_storage_paths(agent_plan.plan, sessions=request.store.root)
        session = AmplifierSession(
            plan,
            session_id=request.session_id,
            approval_system=self._approval_system(),
            display_system=self._display,
            is_resumed=request.resumed is not None,
        )
        self._logged.hold_back()
        async with session:
            record = self._new_record(agent_plan)
            agent = self._agent = TerminalAgent(session, request.store, record, self._display, self._signal_handler)
            wanted = None if request.plan is None else request.provider
            agent.check(self._logged, lenient=_is_lenient(agent_plan.plan), wanted=wanted)
            self._logged.show_held()
            self._introduce(agent_plan)
            if request.prompt is None:
                assert self._keyboard is not None
                await Chat(agent, self._keyboard, self._streams.err).run()
            else:
                self._outcome = await agent.run_turn(request.prompt)

    async def _compose(self) -> AgentPlan:
        request = self._request
        available = {info.id for info in await ModuleLoader().discover()}
        return build_plan(available, file=request.plan, provider=request.provider, model=request.model)

    def _approval_system(self) -> ApprovalSystem:
        if self._request.yes:
            return AllowEverything(self._display)
        if self._keyboard is None or not self._streams.err.is_terminal:
            return DenyEverything(self._display)
        return AskAtTerminal(self._display, self._streams.err, self._keyboard, self._signal_handler)

    def _new_record(self, agent_plan: AgentPlan) -> SessionRecord:
        request = self._request
        known = request.resumed or SessionRecord(
            session_id=request.session_id, created=now(), directory=str(Path.cwd())
        )
        return attrs.evolve(
            known,
            provider=agent_plan.provider,
            model=request.model,
            plan=None if request.plan is None else str(request.plan.absolute()),
            backend=request.backend,
        )

    def _introduce(self, agent_plan: AgentPlan) -> None:
        for note in agent_plan.notes:
            self._display.notice(note, "warning")
        if self._request.plan is not None:
            for warning in check_plan(agent_plan.plan)[1]:
                self._display.notice(visible_text(f"{self._request.plan.name}: {warning}", multiline=False), "warning")

    # ── the end ──

    def _conclude(self, problem: BaseException | None) -> None:
        """Everything is closed: say how it went and choose the exit code."""
        self._logged.show_held()
        if self._agent is None or self._agent.turns == 0:
            self._forget_empty_session()
        if isinstance(problem, BrokenPipeError):
            raise problem
        ended_by = self._signal_handler.ended_by
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
        said, plan = error_message(problem), self._request.plan
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
        request = self._request
        if (
            request.resumed is None
            and request.store.exists(request.session_id)
            and not request.store.transcript(request.session_id).messages
        ):
            with suppress(OSError, CommandError):
                request.store.delete(request.session_id)

    def _report(self) -> None:
        request, outcome = self._request, self._outcome
        if outcome is None:
            return
        if outcome.status == "error":
            self._display.notice(f"amplifier: {outcome.error}", "error")
        elif outcome.status == "cancelled" and self._signal_handler.ended_by in (None, signal.SIGINT):
            self._tell_stopped()
        if request.debug and outcome.exception is not None:
            self._streams.err.line("".join(traceback.format_exception(outcome.exception)))
        files = {} if self._agent is None else self._agent.files()
        if request.output_format == "text":
            self._tell_where(files)
        else:
            self._print_json(outcome, files)

    def _tell_stopped(self) -> None:
        agent = self._agent
        if agent is not None and agent.turns:
            # A context that keeps nothing on disk ends with this process, and the conversation with it.
            words = agent.stopped_message() if "transcript" in agent.files() else "Stopped."
            self._display.notice(words, "warning")

    def _tell_where(self, files: dict[str, str]) -> None:
        agent = self._agent
        if agent is None or agent.turns == 0:
            return
        work = agent.latest
        counted = f"{len(work.tools)} tool call{'' if len(work.tools) == 1 else 's'}, {work.seconds:.1f} s"
        tokens = f", {agent.tokens} tokens" if agent.tokens else ""
        self._display.notice(f"session {agent.session.session_id} ({counted}{tokens})")
        for name, path in files.items():
            self._display.notice(f"{name} {path}")

    def _print_json(self, outcome: Outcome, files: dict[str, str]) -> None:
        agent = self._agent
        shown: dict[str, Any] = as_json(
            outcome,
            TurnRecord() if agent is None else agent.latest,
            session_id=None if agent is None or agent.turns == 0 else agent.session.session_id,
            exit_code=self.exit_code,
            files=files,
            trace=self._request.output_format == "json-trace",
        )
        _print_object(self._streams, shown)


def _is_lenient(plan: dict[str, Any]) -> bool:
    """Whether the plan says in so many words that its modules may fail."""
    session = plan.get("session")
    return isinstance(session, dict) and session.get("strict") is False


def _print_object(streams: StandardStreams, shown: dict[str, Any]) -> None:
    # Escaped to ASCII: valid in every encoding, and harmless if a terminal shows it.
    streams.out.write(json.dumps(shown, default=str) + "\n")
