"""An open session at the terminal, and its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from amplifier._internal.json import visible_text
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import SessionStore
from amplifier.cli.terminal.display import Display, LogNotices, spent
from amplifier.errors import AmplifierError, NoOneToAskError, NoUnfinishedTurnError
from amplifier.events import BUDGET_WARNING, CONTEXT_COMPACTION, TURN_RESUMED
from amplifier.kernel import AmplifierSession, ModuleFailure
from amplifier.models import TurnEvent
from amplifier.models.turns import Ended, TurnRecord
from amplifier.plan.dicts import module_hashes
from amplifier.shared_sessions import run_turn
from amplifier.shared_sessions.checkpoints import Checkpoints
from amplifier.store import INTERRUPTED, RUNNING, SessionRecord
from amplifier.store.sessions import EVENTS_FILE

from .configuration import Permissions
from .default_plan import OFFLINE_PROVIDER
from .signals import SignalHandler


@attrs.define
class TerminalAgent:
    """An open session with its display, its permissions and its records.

    Attributes:
        session: The session.
        store: The stored sessions.
        record: The session's metadata, as stored.
        plan: The mount plan, without the additions of this run.
        display: Shows turns.
        signal_handler: Stops turns.
        permissions: The permissions of the run.
        checkpoints: The file copies for undo.
        latest: The record of the latest turn.
        tokens: Number of tokens of all turns of this process.
        turns: Number of turns of this process.
    """

    session: AmplifierSession
    store: SessionStore
    record: SessionRecord
    plan: dict[str, Any]
    display: Display
    signal_handler: SignalHandler
    permissions: Permissions
    checkpoints: Checkpoints
    latest: TurnRecord = attrs.field(factory=TurnRecord)
    tokens: int = 0
    turns: int = 0

    def check_modules(self, log: LogNotices, *, wanted: str | None = None) -> None:
        """Check that the modules of the plan are mounted.

        A failed module may be a hook that requests permission. With ``strict: false`` in the plan's
        section ``session``, failed modules are only reported, unless no provider is left.

        Args:
            log: The log of the modules. A provider that declines logs the reason.
            wanted: The provider that the user chose. No other provider may answer in its place.

        Raises:
            CommandError: There is no provider, or the chosen one is missing.
            AmplifierError: A module of the plan can't be used.
        """
        failures = self.session.failures
        if not self.session.coordinator.get("providers"):
            others = [failure for failure in failures if failure.module_type != "provider"]
            raise CommandError("\n".join([self._no_provider_message(log), *list_failures(others)]))
        if wanted is not None and (reason := self._declined_reason(wanted, log)) is not None:
            raise CommandError(f"{self.record.provider} declined: {reason}{self._advice()}")
        for warning in check_failures(self.session):
            self.display.notice(warning, "warning")

    def _declined_reason(self, wanted: str, log: LogNotices) -> str | None:
        """Return the logged reason of a provider that declined, or None if it is mounted.

        Modules choose the names of their providers, so a missing provider is detected by the number
        of providers.
        """
        mounted = self.session.coordinator.get("providers")
        failed = sum(failure.module_type == "provider" for failure in self.session.failures)
        entries = self.session.config.get("providers") or ()
        is_mounted = {wanted, wanted.removeprefix("provider-")} & set(mounted)
        if is_mounted or len(mounted) + failed >= len(entries):
            return None
        return log.pop_about(self.record.provider or wanted)

    def _no_provider_message(self, log: LogNotices) -> str:
        failed = [failure for failure in self.session.failures if failure.module_type == "provider"]
        if failed:
            reasons = "; ".join(
                f"{failure.module_id}: {failure_reason(failure.error)}" for failure in failed
            )
            return f"no provider could be mounted: {reasons}{self._advice()}"
        provider = self.record.provider
        if provider is None:
            return (
                f"the plan names no provider; add one to it or choose one with -p{self._advice()}"
            )
        unknown = "it gave no reason; `amplifier doctor` shows which keys are set"
        reason = log.pop_about(provider) or unknown
        return f"{provider} declined: {reason}{self._advice()}"

    def _advice(self) -> str:
        if self.record.provider == OFFLINE_PROVIDER:
            return ""
        return ". To try things without a model: amplifier run -p offline"

    async def run_turn(self, prompt: str | None, attached: Sequence[Any] = ()) -> Ended:
        """Run one turn and show it. Without a prompt, continue the interrupted turn.

        Args:
            prompt: The text of the prompt.
            attached: Further blocks of the prompt.

        Raises:
            BrokenPipeError: The reader of the answer has closed the pipe.
            OutputLostError: The answer can't be written.
            NoUnfinishedTurnError: There is no turn to continue.
        """
        self._start_turn(prompt)
        await self.checkpoints.begin(prompt, self.session.coordinator.get("context"))
        # The outcome if the whole command is cancelled.
        outcome, stays_interrupted = Ended(status="cancelled"), False
        try:
            with self.signal_handler.during_turn(self.session.coordinator.cancellation):
                blocks = prompt if prompt is None or not attached else [prompt, *attached]
                ended = await run_turn(self.session, blocks, self.latest, self._show)
            if isinstance(ended.error, NoUnfinishedTurnError):
                outcome = Ended(status="success")
                raise ended.error
            streamed = self.latest.unfinished if ended.status == "cancelled" else ""
            outcome = ended if ended.error is None else attrs.evolve(ended, result=streamed or None)
            stays_interrupted = isinstance(ended.error, NoOneToAskError) and ended.error.keeps_turn
            self.display.end_turn(ended.result)
        finally:
            self.display.end_turn(None)  # if the turn raised
            await self.checkpoints.end()
            self._end_turn(outcome, stays_interrupted=stays_interrupted)
        return outcome

    async def _show(self, event: TurnEvent, text: str) -> None:
        if event.name == TURN_RESUMED:
            self.display.notice(_resumed_message(event.data))
        elif event.name == BUDGET_WARNING:
            self.display.notice(_warning_message(event.data), "warning")
        elif event.name == CONTEXT_COMPACTION:
            self.display.notice(compaction_message(event.data))
        self.display.show(event, self.latest)

    def _start_turn(self, prompt: str | None) -> None:
        self.latest = TurnRecord()
        self.turns += 1
        self.record = self.record.used(RUNNING, prompt=prompt)
        self.store.write(self.record, turn_plan=module_hashes(self.plan))

    def _end_turn(self, outcome: Ended, *, stays_interrupted: bool = False) -> None:
        self.tokens += self.latest.input_tokens + self.latest.output_tokens
        self.record = self.record.used(INTERRUPTED if stays_interrupted else outcome.status)
        self.store.write(self.record, **({} if stays_interrupted else {"turn_plan": None}))

    def latest_in_words(self) -> str:
        """Return the number of tool calls, the time and the cost of the latest turn as text."""
        calls = len(self.latest.tools)
        return f"{calls} tool call{'' if calls == 1 else 's'}, {spent(self.latest)}"

    def stopped_message(self) -> str:
        """Return a message about the stored parts of a stopped turn."""
        rest = "; the unfinished answer is not" if self.latest.unfinished else ""
        return f"Stopped. The prompt and every finished step are kept{rest}."

    def files(self) -> dict[str, str]:
        """Return the session's files, by their purpose."""
        events = self.store.folder(self.session.session_id) / EVENTS_FILE
        files = {"events": str(events)} if events.exists() else {}
        if self.store.has_messages(self.session.session_id):
            files = {"transcript": str(self.store.path), **files}
        return files


def _warning_message(data: Mapping[str, Any]) -> str:
    limited = str(data.get("what")).replace("_", " ")
    text = f"budget: {limited} {data.get('used')} of {data.get('limit')} used"
    return visible_text(text, multiline=False)


def compaction_message(data: Mapping[str, Any]) -> str:
    """Return a message about a compaction of the model's view of the conversation."""
    changes = {"results": "old tool outputs shortened", "summary": "older messages summarised"}
    change = changes.get(str(data.get("tier")), "older messages left out")
    before, after, tokens = data.get("before_tokens"), data.get("after_tokens"), ""
    if isinstance(before, int) and isinstance(after, int):
        tokens = f", {before:,} → {after:,} tokens"
    failure = f" (no summary: {data['failure']})" if data.get("failure") else ""
    text = f"context: {change}{tokens}{failure}; /uncompact in a chat undoes it"
    return visible_text(text, multiline=False)


def _resumed_message(data: Mapping[str, Any]) -> str:
    """Return a message about the tool calls that were open when the turn was interrupted."""
    phrases = {
        "kept": ("result kept", "results kept"),
        "started": ("call started", "calls started"),
        "repeated": ("call repeated", "calls repeated"),
        "interrupted": ("call left interrupted", "calls left interrupted"),
    }
    parts = []
    for outcome, (one, several) in phrases.items():
        names = [
            str(call.get("tool_name"))
            for call in data.get("calls") or ()
            if call.get("outcome") == outcome
        ]
        if names:
            parts.append(f"{len(names)} {one if len(names) == 1 else several} ({', '.join(names)})")
    text = f"Interrupted tool calls: {', '.join(parts) or 'none'}."
    return visible_text(text, multiline=False)


# ── failed modules ──

_REMEDY = (
    "Correct the plan or remove them; "
    "with `strict: false` in its section `session` it runs without them."
)


def check_failures(session: AmplifierSession) -> list[str]:
    """Check that no module of a session has failed.

    Returns:
        Warnings in place of the error, if the plan has ``strict: false`` in its section
        ``session``.

    Raises:
        AmplifierError: A module of the plan can't be used.
    """
    settings = session.config.get("session")
    if isinstance(settings, dict) and settings.get("strict") is False:
        return [
            f"{failure.module_id} is not available: {failure_reason(failure.error)}"
            for failure in session.failures
        ]
    if session.failures:
        count = len(session.failures)
        counted = "1 module" if count == 1 else f"{count} modules"
        lines = [
            f"{counted} of the plan cannot be used, so nothing was begun:",
            *list_failures(session.failures),
        ]
        raise AmplifierError("\n".join([*lines, _REMEDY]))
    return []


def list_failures(failures: Sequence[ModuleFailure]) -> list[str]:
    """Return one line for each failure."""
    return [f"  {failure.module_id}: {failure_reason(failure.error)}" for failure in failures]


def failure_reason(error: BaseException) -> str:
    """Return the reason why a module failed, preferably from an `AmplifierError` that caused it."""
    return error_message(error.__cause__ if isinstance(error.__cause__, AmplifierError) else error)
