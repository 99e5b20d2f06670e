"""One run of an agent from the command line: builds its plan, runs its turns, reports the result, chooses the exit code."""

from __future__ import annotations

import json
import shlex
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier._json import visible_text
from amplifier.cli.core.error_messages import error_message, exit_code_of, traceback_text
from amplifier.cli.core.exit_codes import CommandError, Exit, OutputLostError
from amplifier.cli.core.turn_record import Outcome, TurnRecord, as_json
from amplifier.cli.sessions.home_folder import running_folder
from amplifier.cli.sessions.running_commands import answer_task_requests
from amplifier.cli.sessions.store import SessionRecord, SessionStore, now
from amplifier.cli.terminal.display import Display, OutputFormat
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.log_output import LogNotices, install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.contracts import ApprovalSystem
from amplifier.errors import MissingExtraError
from amplifier.errors import ModuleNotFoundError as UnknownModuleError
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.plan import check_plan

from .approvals import AllowEverything, AskAtTerminal, DenyEverything
from .chat import Chat
from .default_plan import AgentPlan, build_plan, with_storage_paths
from .signals import SignalHandler, handled_signals
from .terminal_agent import TerminalAgent

__all__ = ["RunRequest", "print_error_json", "run_agent"]

_REFRESH_INTERVAL = 0.25
"""Seconds between two updates of the live lines."""


@attrs.frozen(kw_only=True)
class RunRequest:
    """What the user asked for.

    Attributes:
        prompt: None for a chat.
        provider: As the user wrote it; None for the default one.
        resumed: The session to go on with; None for a new one.
        session_id: The id of the resumed or the new session.
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
    """Run an agent, report the result and return the exit code."""
    if request.backend == "trio":
        try:
            import trio  # noqa: F401, PLC0415  # belongs to an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError("--backend trio", extra="trio", missing="trio") from error
    streams = StandardStreams()
    display = Display(streams, request.output_format, quiet=request.quiet)
    agent_run = _AgentRun(request, streams, display, install_log_handler(display, debug=request.debug))
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
        streams.discard_unwritable()
    return agent_run.exit_code


def print_error_json(error: Exception, output_format: OutputFormat) -> None:
    """Print the JSON object of a run that could not be prepared; the caller prints the message for people."""
    outcome = Outcome(status="error", error=error_message(error), exception=error)
    trace = output_format == "json-trace"
    _print_object(StandardStreams(), as_json(outcome, TurnRecord(), exit_code=exit_code_of(error), trace=trace))


class _AgentRun:
    """The state of one run."""

    def __init__(self, request: RunRequest, streams: StandardStreams, display: Display, log: LogNotices) -> None:
        self._request = request
        self._log = log
        self._streams = streams
        self._display = display
        self._keyboard = Keyboard() if Keyboard.is_available() else None
        self._agent: TerminalAgent | None = None
        self._outcome: Outcome | None = None
        self.exit_code: int = Exit.OK

    async def run(self) -> None:
        """Run to the end; raises only errors of standard output."""
        self._signal_handler = SignalHandler(self._display)
        problem: Exception | None = None
        with anyio.open_signal_receiver(*handled_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._signal_handler.watch, signals)
                group.start_soon(self._refresh_live_lines)
                with self._signal_handler.scope:
                    try:
                        await self._run()
                    except Exception as error:  # noqa: BLE001  # reported below, outside of the group that would wrap it
                        problem = error
                group.cancel_scope.cancel()
        self._finish(problem)

    async def _refresh_live_lines(self) -> None:
        while True:
            await anyio.sleep(_REFRESH_INTERVAL)
            self._display.draw_live_lines()

    async def _run(self) -> None:
        request = self._request
        available = {info.id for info in await ModuleLoader().discover()}
        agent_plan = build_plan(available, file=request.plan, provider=request.provider, model=request.model)
        session = AmplifierSession(
            with_storage_paths(agent_plan.plan, sessions=request.store.root),
            session_id=request.session_id,
            approval_system=self._approval_system(),
            display_system=self._display,
            is_resumed=request.resumed is not None,
        )
        self._log.hold()
        async with session:
            record = self._session_record(agent_plan)
            agent = self._agent = TerminalAgent(session, request.store, record, self._display, self._signal_handler)
            agent.check_modules(self._log, wanted=None if request.plan is None else request.provider)
            self._show_sandbox(session)
            self._log.show_held()
            for note in agent_plan.notes:
                self._display.notice(note, "warning")
            if request.plan is not None:
                for warning in check_plan(agent_plan.plan)[1]:
                    self._display.notice(visible_text(f"{request.plan.name}: {warning}", multiline=False), "warning")
            if request.prompt is None:
                assert self._keyboard is not None
                await Chat(agent, self._keyboard, self._streams.err).run()
            else:
                self._outcome = await agent.run_turn(request.prompt)

    def _show_sandbox(self, session: AmplifierSession) -> None:
        """Show how commands are confined, before anything else."""
        sandbox = session.coordinator.get_capability("bash.sandbox")
        if not isinstance(sandbox, dict):
            return
        if sandbox.get("kind") == "off":
            self._display.notice("sandbox off: commands can do what you can do")
        else:
            network = "with network" if sandbox.get("network") else "no network"
            self._display.notice(
                f"sandbox {sandbox.get('kind')}: commands change files below {Path.cwd()} only, {network}"
            )

    def _approval_system(self) -> ApprovalSystem:
        if self._request.yes:
            return AllowEverything(self._display)
        if self._keyboard is None or not self._streams.err.is_terminal:
            return DenyEverything(self._display)
        return AskAtTerminal(self._display, self._streams.err, self._keyboard, self._signal_handler)

    def _session_record(self, agent_plan: AgentPlan) -> SessionRecord:
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

    # ── after the session is closed ──

    def _finish(self, problem: Exception | None) -> None:
        """Report how the run ended and choose the exit code."""
        self._log.show_held()
        if self._agent is None or self._agent.turns == 0:
            self._delete_empty_session()
        if isinstance(problem, BrokenPipeError):
            raise problem
        ended_by = self._signal_handler.ended_by
        if problem is not None:
            message, plan = error_message(problem), self._request.plan
            if plan is not None and isinstance(problem, UnknownModuleError):
                # A session without its loop or its context does not check the rest of its plan.
                message += f" There may be more: amplifier plan check {shlex.quote(str(plan))}"
            self._outcome = Outcome(status="error", error=message, exception=problem)
            self.exit_code = exit_code_of(problem)
        elif ended_by is not None:
            response = None if self._agent is None else self._agent.latest.unfinished or None
            if self._outcome is not None:
                response = self._outcome.response
            self._outcome = Outcome(status="cancelled", response=response, error=f"ended by {ended_by.name}")
            self.exit_code = 128 + ended_by
        elif self._outcome is not None:
            self.exit_code = self._outcome.exit_code
        if self._outcome is not None:
            self._report(self._outcome)

    def _delete_empty_session(self) -> None:
        store, session_id = self._request.store, self._request.session_id
        is_new = self._request.resumed is None and store.exists(session_id)
        if is_new and not store.transcript(session_id).messages:
            with suppress(OSError, CommandError):
                store.delete(session_id)

    def _report(self, outcome: Outcome) -> None:
        request, agent = self._request, self._agent
        if agent is not None and agent.turns == 0:
            agent = None
        files = {} if self._agent is None else self._agent.files()
        if outcome.status == "error":
            self._display.notice(f"amplifier: {outcome.error}", "error")
        elif (
            agent is not None
            and outcome.status == "cancelled"
            and self._signal_handler.ended_by in (None, signal.SIGINT)
        ):
            # A context that keeps nothing on disk ends with this process, and the conversation with it.
            self._display.notice(agent.stopped_message() if "transcript" in files else "Stopped.", "warning")
        if request.debug and outcome.exception is not None:
            self._streams.err.line(traceback_text(outcome.exception))
        if request.output_format != "text":
            shown = as_json(
                outcome,
                TurnRecord() if self._agent is None else self._agent.latest,
                session_id=None if agent is None else request.session_id,
                exit_code=self.exit_code,
                files=files,
                trace=request.output_format == "json-trace",
            )
            _print_object(self._streams, shown)
        elif agent is not None:
            turn = agent.latest
            calls = f"{len(turn.tools)} tool call{'' if len(turn.tools) == 1 else 's'}, {turn.seconds:.1f} s"
            tokens = f", {agent.tokens} tokens" if agent.tokens else ""
            self._display.notice(f"session {request.session_id} ({calls}{tokens})")
            for name, path in files.items():
                self._display.notice(f"{name} {path}")


def _print_object(streams: StandardStreams, value: dict[str, Any]) -> None:
    # Escaped to ASCII: valid in every encoding, and harmless if a terminal shows it.
    streams.out.write(json.dumps(value, default=str) + "\n")
