"""An open session at the terminal, and its turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from amplifier._json import redact_text, visible_text
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError, OutputLostError
from amplifier.cli.core.turn_record import Outcome, TurnRecord
from amplifier.cli.sessions.store import EVENTS_FILE, RUNNING, SessionRecord, SessionStore, now
from amplifier.cli.sessions.transcript import FILE_NAME
from amplifier.cli.sessions.turn_plan import remove_turn_plan, write_turn_plan
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import LogNotices
from amplifier.errors import ExecutionCancelled, NoUnfinishedTurnError
from amplifier.events import BUDGET_WARNING, TURN_RESUMED
from amplifier.kernel import AmplifierSession

from .default_plan import OFFLINE_PROVIDER
from .module_failures import check_failures, failure_reason, list_failures
from .signals import SignalHandler

__all__ = ["TerminalAgent"]

_TITLE_LENGTH = 80


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
        if {wanted, wanted.removeprefix("provider-")} & set(mounted) or len(mounted) + failed >= len(entries):
            return None
        return log.pop_about(self.record.provider or wanted)

    def _no_provider_message(self, log: LogNotices) -> str:
        blamed = [failure for failure in self.session.failures if failure.module_type == "provider"]
        if blamed:
            reasons = "; ".join(f"{failure.module_id}: {failure_reason(failure.error)}" for failure in blamed)
            return f"no provider could be mounted: {reasons}{self._advice()}"
        provider = self.record.provider
        if provider is None:
            return f"the plan names no provider; add one to it or choose one with -p{self._advice()}"
        reason = log.pop_about(provider) or "it gave no reason; `amplifier doctor` shows which keys are set"
        return f"{provider} declined: {reason}{self._advice()}"

    def _advice(self) -> str:
        if self.record.provider == OFFLINE_PROVIDER:
            return ""
        return ". To try things without a model: amplifier run -p offline"

    async def run_turn(self, prompt: str | None) -> Outcome:
        """Run one turn and show it; without a prompt, go on with the turn that was cut off.

        Raises:
            BrokenPipeError: The reader of the answer has gone.
            OutputLostError: The answer cannot be written.
            NoUnfinishedTurnError: There is no turn to go on with.
        """
        self._start_turn(prompt)
        token = self.session.coordinator.cancellation
        response: str | None = None
        try:
            with self.signal_handler.during_turn(token):
                stream = self.session.stream_resumed_turn() if prompt is None else self.session.stream(prompt)
                async with stream as events:
                    async for event in events:
                        self.latest.add(event)
                        if event.name == TURN_RESUMED:
                            self.display.notice(_resumed_message(event.data))
                        elif event.name == BUDGET_WARNING:
                            self.display.notice(_warning_message(event.data), "warning")
                        self.display.show(event, self.latest)
                response = events.result
            was_stopped = self.session.status.status == "cancelled"
            outcome = Outcome(status="cancelled" if was_stopped else "success", response=response)
        except ExecutionCancelled as stopped:
            streamed = self.latest.unfinished or None
            outcome = Outcome(status="cancelled", response=streamed, error=error_message(stopped), exception=stopped)
        except NoUnfinishedTurnError:
            self._end_turn(Outcome(status="success"))
            raise
        except (BrokenPipeError, OutputLostError):
            self._end_turn(Outcome(status="cancelled"))
            raise
        except Exception as error:  # noqa: BLE001  # a turn runs third-party code; what it raises is the turn's outcome
            outcome = Outcome(status="error", error=error_message(error), exception=error)
        except BaseException:  # the whole command is being cancelled
            self._end_turn(Outcome(status="cancelled"))
            raise
        finally:
            self.display.clear_live_lines()
        try:
            self.display.end_turn(response)
        finally:
            self._end_turn(outcome)
        return outcome

    def _start_turn(self, prompt: str | None) -> None:
        self.latest = TurnRecord()
        self.turns += 1
        title = self.record.title or redact_text(" ".join((prompt or "").split()))[:_TITLE_LENGTH] or None
        self.record = attrs.evolve(self.record, title=title, updated=now(), status=RUNNING)
        self.store.write(self.record)
        write_turn_plan(self.store.folder(self.record.session_id), self.plan)

    def _end_turn(self, outcome: Outcome) -> None:
        self.tokens += self.latest.input_tokens + self.latest.output_tokens
        self.record = attrs.evolve(self.record, updated=now(), status=outcome.status)
        self.store.write(self.record)
        remove_turn_plan(self.store.folder(self.record.session_id))

    def stopped_message(self) -> str:
        """Which parts of a stopped turn the next turn will know."""
        rest = "; the answer that was cut off is not" if self.latest.unfinished else ""
        return f"Stopped. What was asked and every finished step are kept{rest}."

    def files(self) -> dict[str, str]:
        """The session's files that exist in its folder, by their purpose."""
        folder = self.store.folder(self.session.session_id)
        paths = {"transcript": folder / FILE_NAME, "events": folder / EVENTS_FILE}
        return {name: str(path) for name, path in paths.items() if path.exists()}


def _warning_message(data: Mapping[str, Any]) -> str:
    what = str(data.get("what")).replace("_", " ")
    return visible_text(f"budget: {what} {data.get('used')} of {data.get('limit')} used", multiline=False)


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
        names = [str(call.get("tool_name")) for call in data.get("calls") or () if call.get("outcome") == outcome]
        if names:
            parts.append(f"{len(names)} {one if len(names) == 1 else several} ({', '.join(names)})")
    return visible_text(f"Tool calls that were cut off: {', '.join(parts) or 'none'}.", multiline=False)
