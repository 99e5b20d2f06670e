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
    """An open session, and what the command line knows about it.

    Attributes:
        record: The session's metadata, as the store keeps it.
        plan: The mount plan, as the user would write it.
        latest: What the latest turn did.
        tokens: Of all turns of this process.
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
        """Check that the modules of the plan are mounted; a failed one may be a hook that was to ask for permission.

        With ``strict: false`` in the plan's section ``session``, failed modules are only reported, unless no provider is left.

        Args:
            log: What the modules logged; a provider that declines logs the reason.
            wanted: The provider that the user chose; no other one may answer in its place.

        Raises:
            CommandError: There is no provider, or not the wanted one, or a module of the plan cannot be used.
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
        """The reason that a provider which is not mounted logged; None if it is mounted, or if that cannot be decided.

        Mounted providers have names that their modules choose, so a missing one is detected by the number of providers.
        """
        mounted = self.session.coordinator.get("providers")
        failed = sum(failure.module_type == "provider" for failure in self.session.failures)
        entries = self.session.config.get("providers") or ()
        if {wanted, wanted.removeprefix("provider-")} & set(mounted) or len(
            mounted
        ) + failed >= len(entries):
            return None
        return log.pop_about(self.record.provider or wanted)

    def _no_provider_message(self, log: LogNotices) -> str:
        blamed = [failure for failure in self.session.failures if failure.module_type == "provider"]
        if blamed:
            reasons = "; ".join(
                f"{failure.module_id}: {failure_reason(failure.error)}" for failure in blamed
            )
            return f"no provider could be mounted: {reasons}{self._advice()}"
        provider = self.record.provider
        if provider is None:
            return (
                f"the plan names no provider; add one to it or choose one with -p{self._advice()}"
            )
        reason = (
            log.pop_about(provider)
            or "it gave no reason; `amplifier doctor` shows which keys are set"
        )
        return f"{provider} declined: {reason}{self._advice()}"

    def _advice(self) -> str:
        if self.record.provider == OFFLINE_PROVIDER:
            return ""
        return ". To try things without a model: amplifier run -p offline"

    async def run_turn(self, prompt: str | None, attached: Sequence[Any] = ()) -> Ended:
        """Run one turn and show it; without a prompt, go on with the turn that was cut off.

        Args:
            prompt: The text of it.
            attached: Further blocks of it.

        Raises:
            BrokenPipeError: The reader of the answer has gone.
            OutputLostError: The answer cannot be written.
            NoUnfinishedTurnError: There is no turn to go on with.
        """
        self._start_turn(prompt)
        await self.checkpoints.begin(prompt, self.session.coordinator.get("context"))
        # Unless it ends: the whole command may be cancelled.
        outcome, stays_cut_off = Ended(status="cancelled"), False
        try:
            with self.signal_handler.during_turn(self.session.coordinator.cancellation):
                given = prompt if prompt is None or not attached else [prompt, *attached]
                ended = await run_turn(self.session, given, self.latest, self._show)
            if isinstance(ended.error, NoUnfinishedTurnError):
                outcome = Ended(status="success")
                raise ended.error
            streamed = self.latest.unfinished if ended.status == "cancelled" else ""
            outcome = ended if ended.error is None else attrs.evolve(ended, result=streamed or None)
            stays_cut_off = isinstance(ended.error, NoOneToAskError) and ended.error.keeps_turn
            self.display.end_turn(ended.result)
        finally:
            self.display.end_turn(None)  # of a turn that raised as well
            await self.checkpoints.end()
            self._end_turn(outcome, stays_cut_off=stays_cut_off)
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

    def _end_turn(self, outcome: Ended, *, stays_cut_off: bool = False) -> None:
        self.tokens += self.latest.input_tokens + self.latest.output_tokens
        self.record = self.record.used(INTERRUPTED if stays_cut_off else outcome.status)
        self.store.write(self.record, **({} if stays_cut_off else {"turn_plan": None}))

    def latest_in_words(self) -> str:
        """What the latest turn did, took and cost."""
        calls = len(self.latest.tools)
        return f"{calls} tool call{'' if calls == 1 else 's'}, {spent(self.latest)}"

    def stopped_message(self) -> str:
        """Which parts of a stopped turn the next turn will know."""
        rest = "; the answer that was cut off is not" if self.latest.unfinished else ""
        return f"Stopped. What was asked and every finished step are kept{rest}."

    def files(self) -> dict[str, str]:
        """The files that have something of the session, by their purpose."""
        events = self.store.folder(self.session.session_id) / EVENTS_FILE
        found = {"events": str(events)} if events.exists() else {}
        if self.store.has_messages(self.session.session_id):
            found = {"transcript": str(self.store.path), **found}
        return found


def _warning_message(data: Mapping[str, Any]) -> str:
    what = str(data.get("what")).replace("_", " ")
    return visible_text(
        f"budget: {what} {data.get('used')} of {data.get('limit')} used", multiline=False
    )


def compaction_message(data: Mapping[str, Any]) -> str:
    """What a compaction left of the view of the conversation."""
    how = {"results": "old tool outputs shortened", "summary": "older messages summarised"}
    before, after = data.get("before_tokens"), data.get("after_tokens")
    tokens = (
        f", {before:,} → {after:,} tokens"
        if isinstance(before, int) and isinstance(after, int)
        else ""
    )
    failure = f" (no summary: {data['failure']})" if data.get("failure") else ""
    done = how.get(str(data.get("tier")), "older messages left out")
    return visible_text(
        f"context: {done}{tokens}{failure}; /uncompact in a chat undoes it", multiline=False
    )


def _resumed_message(data: Mapping[str, Any]) -> str:
    """What became of the tool calls that were open when the turn was cut off."""
    words = {
        "kept": ("result kept", "results kept"),
        "started": ("call started", "calls started"),
        "repeated": ("call repeated", "calls repeated"),
        "interrupted": ("call left interrupted", "calls left interrupted"),
    }
    parts = []
    for outcome, (one, several) in words.items():
        names = [
            str(call.get("tool_name"))
            for call in data.get("calls") or ()
            if call.get("outcome") == outcome
        ]
        if names:
            parts.append(f"{len(names)} {one if len(names) == 1 else several} ({', '.join(names)})")
    return visible_text(
        f"Tool calls that were cut off: {', '.join(parts) or 'none'}.", multiline=False
    )


# ── failed modules ──

_REMEDY = "Correct the plan or take them out of it; with `strict: false` in its section `session` it runs without them."


def check_failures(session: AmplifierSession) -> list[str]:
    """Refuse a session with failed modules; returns warnings if its plan has ``strict: false`` in its section ``session``.

    Raises:
        AmplifierError: A module of the plan cannot be used.
    """
    settings = session.config.get("session")
    if isinstance(settings, dict) and settings.get("strict") is False:
        return [
            f"{each.module_id} is not available: {failure_reason(each.error)}"
            for each in session.failures
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
    """One line for each."""
    return [f"  {failure.module_id}: {failure_reason(failure.error)}" for failure in failures]


def failure_reason(error: BaseException) -> str:
    """Why a module failed; an `AmplifierError` that caused the error explains it better."""
    return error_message(error.__cause__ if isinstance(error.__cause__, AmplifierError) else error)
