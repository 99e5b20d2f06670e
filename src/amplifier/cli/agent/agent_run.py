"""One run of an agent from the command line: its plan, its turns, its result and exit code."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier._internal.json import visible_text
from amplifier.budget.budget import budget_as_json, budget_text
from amplifier.cli._error_messages import error_message, exit_code_of, traceback_text
from amplifier.cli._exit_codes import CommandError, Exit, OutputLostError
from amplifier.cli._sessions import SessionStore
from amplifier.cli.terminal.display import Display, LogNotices, OutputFormat, install_log_handler
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import StandardStreams, is_terminal
from amplifier.contracts import ApprovalSystem
from amplifier.errors import AmplifierError, BudgetExceeded, NoUnfinishedTurnError
from amplifier.errors import ModuleNotFoundError as UnknownModuleError
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.models.turns import Ended, TurnRecord
from amplifier.plan.dicts import plan_changes
from amplifier.shared_sessions.checkpoints import Checkpoints
from amplifier.store import SessionRecord
from amplifier.store.sessions import now
from amplifier.tracing.sessions import text_of_message

from .approvals import AllowEverything, AskAtTerminal, NoOneToAsk
from .configuration import REMEMBERED, Configuration, Permissions
from .default_plan import build_plan, with_budget, with_recordings, with_storage_paths, with_traces
from .project_instructions import ProjectInstructions
from .signals import SignalHandler, handled_signals, run_observed
from .terminal_agent import TerminalAgent

if TYPE_CHECKING:
    from .chat import Chat

_TYPING_INTERVAL = 0.05
"""Seconds between two checks for typed text during a turn. Every fifth updates the live lines."""

_MAX_RECAP = 200
"""Maximum length of a message in a recap."""

_MAX_SKILLS = 10
"""Maximum number of skills to list at the start of a run."""

_DECISION_SECONDS = 300.0
"""Time to answer whether a turn continues with a changed plan."""

_AGENT_TOOL = "task"
"""The tool that starts child sessions. Their tool calls aren't counted here."""

_EXIT_CODES = {"success": Exit.OK, "error": Exit.FAILED, "cancelled": Exit.INTERRUPTED}


@attrs.frozen(kw_only=True)
class RunRequest:
    """The user's request.

    Attributes:
        store: The stored sessions.
        session_id: The id of the resumed or the new session.
        prompt: The prompt, or None for a chat.
        goes_on: True to continue an interrupted turn. At a terminal, the chat follows.
        accept_plan_changes: True to continue the turn even if the plan has changed.
        provider: The provider as the user wrote it, or None for the default one.
        model: The model as the user wrote it, or None for the default one.
        plan: The user's own plan file, or None for the default plan.
        backend: The event loop.
        output_format: The format of standard output.
        resumed: The session to continue, or None for a new one.
        record: The file in which to record the answers of providers.
        replay: The file from which to replay the answers of providers.
        otel: The collector for traces and metrics.
        max_cost: The cost limit, in place of the plan's.
        max_total_tokens: The token limit, in place of the plan's.
        mode: The permission mode.
        yes: True to allow everything.
        quiet: True to show only the answer, warnings and errors.
        plain: True to show the answer unrendered.
        project_instructions: True to give the project's instructions to the model.
        debug: True to show tracebacks and the library's log.
        configuration: The user's and the project's configuration, for the default plan and the
            theme.
    """

    store: SessionStore
    session_id: str
    prompt: str | None = None
    goes_on: bool = False
    accept_plan_changes: bool = False
    provider: str | None = None
    model: str | None = None
    plan: Path | None = None
    backend: str = "asyncio"
    output_format: OutputFormat = "text"
    resumed: SessionRecord | None = None
    record: Path | None = None
    replay: Path | None = None
    otel: str | None = None
    max_cost: float | None = None
    max_total_tokens: int | None = None
    mode: str = "ask"
    yes: bool = False
    quiet: bool = False
    plain: bool = False
    project_instructions: bool = True
    debug: bool = False
    configuration: Configuration = attrs.field(factory=Configuration)


def run_agent(request: RunRequest) -> int:
    """Run an agent, report the result and return the exit code."""
    theme = request.configuration.get("theme")
    streams = StandardStreams(plain=request.plain or theme == "plain")
    display = Display(streams, request.output_format, quiet=request.quiet, light=theme == "light")
    agent_run = _AgentRun(
        request, streams, display, install_log_handler(display, debug=request.debug)
    )
    try:
        run_observed(
            agent_run.run, request.session_id, display, backend=request.backend, otel=request.otel
        )
    except BrokenPipeError:
        return Exit.BROKEN_PIPE
    except OutputLostError as error:
        display.notice(f"amplifier: {error}", "error")
        return error.exit_code
    finally:
        streams.discard_unwritable()
    return agent_run.exit_code


def print_error_json(error: Exception, output_format: OutputFormat) -> None:
    """Print the JSON object of a run that could not be prepared. The caller prints the message."""
    text = _as_json(
        Ended(status="error", error=error),
        TurnRecord(),
        exit_code=exit_code_of(error),
        error=error_message(error),
        trace=output_format == "json-trace",
    )
    StandardStreams().out.write(f"{text}\n")


class _AgentRun:
    """The state of one run."""

    def __init__(
        self, request: RunRequest, streams: StandardStreams, display: Display, log: LogNotices
    ) -> None:
        self._request = request
        self._log = log
        self._streams = streams
        self._display = display
        self._permissions = Permissions(Path.cwd(), request.mode)
        self._keyboard = Keyboard() if is_terminal(sys.stdin) else None
        self._agent: TerminalAgent | None = None
        self._chat: Chat | None = None
        self._is_reopened = False
        # The request to return to if the next session can't be opened.
        self._earlier: RunRequest | None = None
        self._outcome: Ended | None = None
        self.exit_code: int = Exit.OK

    async def run(self) -> None:
        """Run to the end. Only errors of standard output propagate."""
        self._signal_handler = SignalHandler(self._display)
        problem: Exception | None = None
        with anyio.open_signal_receiver(*handled_signals()) as signals:
            async with anyio.create_task_group() as group:
                group.start_soon(self._signal_handler.watch, signals)
                group.start_soon(self._refresh_live_lines)
                with self._signal_handler.scope:
                    try:
                        await self._run()
                    # Report it below, outside the task group, which would wrap it.
                    except Exception as error:  # noqa: BLE001
                        problem = error
                group.cancel_scope.cancel()
        self._finish(problem)

    async def _refresh_live_lines(self) -> None:
        while True:
            for _ in range(5):
                await anyio.sleep(_TYPING_INTERVAL)
                if self._chat is not None:
                    self._chat.take_typed()
            self._display.draw_live_lines()

    async def _run(self) -> None:
        available = {info.id for info in await ModuleLoader().discover()}
        changes: dict[str, Any] | None = {}
        while changes is not None:
            try:
                changes = await self._run_session(available)
            except (CommandError, AmplifierError) as error:
                if self._earlier is None:
                    raise
                self._display.notice(error_message(error), "error")
                self._request, self._earlier = self._earlier, None
            else:
                if changes is not None and self._agent is not None:
                    resumed = self._agent.record if self._agent.turns else self._request.resumed
                    self._earlier = attrs.evolve(self._request, resumed=resumed, goes_on=False)
                    self._request, self._is_reopened = attrs.evolve(self._earlier, **changes), True

    async def _run_session(self, available: set[str]) -> dict[str, Any] | None:
        """Run the request in one session.

        Returns:
            The changes of the request for the next session to open, or None.
        """
        request = self._request
        agent_plan = build_plan(
            available,
            file=request.plan,
            provider=request.provider,
            model=request.model,
            project_instructions=request.project_instructions,
            # Permissions of the project are read again at each call.
            configuration=request.configuration.without(REMEMBERED),
        )
        approval_system = self._approval_system()
        if request.goes_on:
            await self._check_plan_changes(agent_plan.plan, approval_system)
        session = AmplifierSession(
            self._session_plan(agent_plan.plan),
            session_id=request.session_id,
            approval_system=approval_system,
            display_system=self._display,
            is_resumed=request.resumed is not None,
        )
        self._log.hold()
        async with session:
            session.coordinator.hooks.register("tool:pre", self._display.edits, name="cli-diffs")
            known = request.resumed or SessionRecord(
                session_id=request.session_id, created=now(), directory=str(Path.cwd())
            )
            record = agent_plan.describe(known, file=request.plan, backend=request.backend)
            self._permissions.open(session.coordinator, remembers=request.plan is None)
            checkpoints = Checkpoints(request.store.folder(session.session_id), Path.cwd())
            session.coordinator.hooks.register("tool:pre", checkpoints, name="cli-checkpoints")
            own = (self._display, self._signal_handler, self._permissions, checkpoints)
            agent = self._agent = TerminalAgent(
                session, request.store, record, agent_plan.plan, *own
            )
            agent.check_modules(
                self._log, wanted=None if request.plan is None else request.provider
            )
            if request.plan is None and self._streams.err.is_terminal and not self._is_reopened:
                tools, hooks = (session.coordinator.get("tools") or {}), agent_plan.plan["hooks"]
                parts = [
                    *(entry["module"] for entry in agent_plan.plan["session"].values()),
                    agent_plan.provider,
                ]
                self._display.notice(
                    f"plan: {', '.join(map(str, parts))}, {len(tools)} tools, {len(hooks)} hooks"
                )
            if not self._is_reopened:
                self._show_sandbox(session)
                self._show_found(agent_plan.found)
            self._log.show_held()
            for note in agent_plan.notes:
                self._display.notice(note, "warning")
            if request.prompt is not None:
                self._outcome = await agent.run_turn(request.prompt)
                return None
            chat = self._chat = None
            if (
                self._keyboard is not None
                and self._streams.err.is_terminal
                and request.output_format == "text"
            ):
                # A single prompt needs no chat.
                from .chat import Chat  # noqa: PLC0415

                chat = self._chat = Chat(agent, self._keyboard, self._streams.err)
            if request.goes_on:
                with nullcontext() if chat is None else chat.listening():
                    self._outcome = await self._go_on(agent)
                if chat is not None:
                    chat.show_outcome(self._outcome)
                    self._outcome = None
            if chat is None:
                return None
            is_other = self._earlier is not None and self._earlier.session_id != request.session_id
            self._earlier = None
            if session.is_resumed and (is_other or not self._is_reopened):
                self._show_recap(await chat.commands.messages())
            await chat.run()
            return chat.commands.reopen

    async def _check_plan_changes(
        self, plan: dict[str, Any], approval_system: ApprovalSystem
    ) -> None:
        """Let the user decide whether to continue a turn whose plan has changed.

        Raises:
            CommandError: The user declines, or there is no terminal.
        """
        request = self._request
        changes = plan_changes(request.store.turn_plan(request.session_id), plan)
        if not changes:
            return
        title = "The plan has changed since the turn was interrupted:"
        listed = visible_text("\n".join([title, *changes]))
        if request.accept_plan_changes:
            self._display.notice(listed, "warning")
            return
        if not isinstance(approval_system, NoOneToAsk):
            with anyio.move_on_after(_DECISION_SECONDS):
                question, options = f"{listed}\nContinue the turn?", ["Allow", "Deny"]
                answer = await approval_system.request_approval(
                    question, options, _DECISION_SECONDS, "deny"
                )
                if answer == "Allow":
                    return
        raise CommandError(
            f"{listed}\nNothing was run. Continue with --accept-plan-changes, or begin a new turn: "
            f"amplifier session resume {request.session_id} PROMPT"
        )

    async def _go_on(self, agent: TerminalAgent) -> Ended:
        """Continue the interrupted turn, or report its outcome if it has ended in the meantime."""
        self._display.notice("Continuing the interrupted turn.")
        try:
            return await agent.run_turn(None)
        except NoUnfinishedTurnError:
            messages = self._request.store.transcript(self._request.session_id)
            answers = [
                text_of_message(message, full=True)
                for message in messages
                if message.get("role") == "assistant"
            ]
            if not answers or messages[-1].get("role") != "assistant":
                raise CommandError(
                    "the process was killed before it had stored the prompt; repeat the prompt: "
                    f"amplifier session resume {self._request.session_id} PROMPT"
                ) from None
            self._display.notice("The turn had ended before its process was killed. Its answer:")
            self._display.end_turn(answers[-1])
            return Ended(status="success", result=answers[-1])

    def _session_plan(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Return the plan with the storage paths, recordings, traces and budget of this run."""
        request = self._request
        if request.record is not None or request.replay is not None:
            plan = with_recordings(plan, record=request.record, replay=request.replay)
        if request.otel is not None:
            plan = with_traces(plan)
        plan = with_budget(plan, cost=request.max_cost, tokens=request.max_total_tokens)
        return with_storage_paths(plan, sessions=request.store.root)

    def _show_recap(self, messages: list[dict[str, Any]]) -> None:
        """Show the latest prompt and answer of a resumed conversation."""
        for role, label in (("user", "You asked last"), ("assistant", "The last answer")):
            texts = [
                text_of_message(message) for message in messages if message.get("role") == role
            ]
            if texts and (text := " ".join(texts[-1].split())):
                end = "…" * (len(text) > _MAX_RECAP)
                self._display.notice(f"{label}: {text[:_MAX_RECAP]}{end}")

    def _show_found(self, found: ProjectInstructions) -> None:
        if found.files:
            self._display.notice(f"instructions of the project: {', '.join(found.files)}")
        if found.skills:
            more = len(found.skills) - _MAX_SKILLS
            names = [*found.skills[:_MAX_SKILLS], *([f"{more} more"] if more > 0 else [])]
            self._display.notice(f"skills: {', '.join(names)}")

    def _show_sandbox(self, session: AmplifierSession) -> None:
        """Show how commands are confined, before anything else."""
        sandbox = session.coordinator.get_capability("bash.sandbox")
        if not isinstance(sandbox, dict):
            return
        if sandbox.get("kind") == "off":
            self._display.notice("sandbox off: commands can do what you can do")
        else:
            kind = sandbox.get("kind")
            network = "with network" if sandbox.get("network") else "no network"
            self._display.notice(
                f"sandbox {kind}: commands change files in this folder only, {network}"
            )

    def _approval_system(self) -> ApprovalSystem:
        if self._request.yes:
            return AllowEverything(self._display)
        if self._keyboard is None or not self._streams.err.is_terminal:
            return NoOneToAsk(self._display, f"amplifier session resume {self._request.session_id}")
        # Permissions of the project apply to the default plan. The user's own plan is not changed.
        permissions = self._permissions if self._request.plan is None else None
        return AskAtTerminal(
            self._display, self._streams.err, self._keyboard, self._signal_handler, permissions
        )

    # ── after the session is closed ──

    def _finish(self, problem: Exception | None) -> None:
        """Report how the run ended and choose the exit code."""
        self._log.show_held()
        if self._agent is None or self._agent.turns == 0:
            self._delete_empty_session()
        if isinstance(problem, BrokenPipeError):
            raise problem
        ended_by, message = self._signal_handler.ended_by, None
        if problem is not None:
            message, plan = error_message(problem), self._request.plan
            if plan is not None and isinstance(problem, UnknownModuleError):
                # Without its loop or context, a session stops before it has checked the rest of its
                # plan.
                message += f" There may be more: amplifier plan check {shlex.quote(str(plan))}"
            self._outcome = Ended(status="error", error=problem)
            self.exit_code = exit_code_of(problem)
        elif ended_by is not None:
            response = None if self._agent is None else self._agent.latest.unfinished or None
            if self._outcome is not None:
                response = self._outcome.result
            self._outcome, message = (
                Ended(status="cancelled", result=response),
                f"ended by {ended_by.name}",
            )
            self.exit_code = 128 + ended_by
        elif self._outcome is not None:
            is_budget = isinstance(self._outcome.error, BudgetExceeded)
            self.exit_code = Exit.BUDGET if is_budget else _EXIT_CODES[self._outcome.status]
            message = None if self._outcome.error is None else error_message(self._outcome.error)
        if self._outcome is not None:
            self._report(self._outcome, message)

    def _delete_empty_session(self) -> None:
        store, session_id = self._request.store, self._request.session_id
        is_new = self._request.resumed is None and store.exists(session_id)
        if is_new and not store.transcript(session_id):
            with suppress(OSError, CommandError):
                store.delete(session_id)

    def _report(self, outcome: Ended, error: str | None) -> None:
        request, agent = self._request, self._agent
        if agent is not None and agent.turns == 0:
            agent = None
        files = {} if self._agent is None else self._agent.files()
        if outcome.status == "error":
            self._display.notice(f"amplifier: {error}", "error")
        elif (
            agent is not None
            and outcome.status == "cancelled"
            and self._signal_handler.ended_by in (None, signal.SIGINT)
        ):
            # Without a context on disk, the conversation ends with this process.
            self._display.notice(
                agent.stopped_message() if "transcript" in files else "Stopped.", "warning"
            )
        if request.debug and outcome.error is not None:
            self._streams.err.line(traceback_text(outcome.error))
        if request.output_format != "text":
            shown = _as_json(
                outcome,
                TurnRecord() if self._agent is None else self._agent.latest,
                session_id=None if agent is None else request.session_id,
                exit_code=self.exit_code,
                error=error,
                files=files,
                trace=request.output_format == "json-trace",
                budget=None if agent is None else budget_as_json(agent.session.budget),
            )
            self._streams.out.write(f"{shown}\n")
        elif agent is not None:
            self._display.notice(f"session {request.session_id} ({agent.latest_in_words()})")
            if (used := budget_text(agent.session.budget)) is not None:
                self._display.notice(f"budget {used}")
            if request.record is not None and request.record.exists():
                self._display.notice(f"recording {request.record}")


def _as_json(
    ended: Ended,
    record: TurnRecord,
    *,
    session_id: str | None = None,
    exit_code: int,
    error: str | None = None,
    files: dict[str, str] | None = None,
    trace: bool = False,
    budget: dict[str, Any] | None = None,
) -> str:
    """Return the object of ``--output-format json``, which docs/reference/cli.md describes."""
    shown: dict[str, Any] = {
        "status": ended.status,
        "response": ended.result,
        "error": error,
        "error_type": None if ended.error is None else type(ended.error).__name__,
        "exit_code": int(exit_code),
        "session_id": session_id,
        "provider": record.provider,
        "model": record.model,
        "timestamp": now(),
        "usage": {
            "input_tokens": record.input_tokens,
            "output_tokens": record.output_tokens,
            "total_tokens": record.input_tokens + record.output_tokens,
            "cost_usd": None if record.cost is None else str(record.cost),
        },
        "metadata": {
            "total_tool_calls": len(record.tools),
            "total_agents_invoked": sum(use.tool == _AGENT_TOOL for use in record.tools.values()),
            "duration_ms": round(record.seconds * 1000, 2),
        },
        "files": files or {},
    }
    if budget is not None:
        shown["budget"] = budget
    if trace:
        shown["execution_trace"] = [
            {
                "type": "tool_call",
                "sequence": number,
                "tool": use.tool,
                "arguments": use.arguments,
                "result": use.result,
                "timestamp": use.started,
                "duration_ms": round(use.seconds * 1000, 2),
            }
            for number, use in enumerate(record.tools.values(), start=1)
        ]
    # ASCII is valid in every encoding, and harmless at a terminal.
    return json.dumps(shown, default=str)
