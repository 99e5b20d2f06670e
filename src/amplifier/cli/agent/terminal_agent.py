"""An open session at the terminal, and its turns.

Above: `_request`, which opens it, and `_chat`. Below: the kernel's session; the display; the signals.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from amplifier._json import redact_text
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError, Exit, OutputLostError
from amplifier.cli.core.turn_record import Outcome, TurnRecord
from amplifier.cli.sessions.store import RUNNING, SessionRecord, SessionStore, now
from amplifier.cli.sessions.transcript import FILE_NAME
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.log_output import LogNotices
from amplifier.errors import AmplifierError, ExecutionCancelled
from amplifier.kernel import AmplifierSession, ModuleFailure

from .default_plan import EVENTS_FILE, OFFLINE_PROVIDER
from .signals import SignalHandler

__all__ = ["TerminalAgent"]

_TITLE_LENGTH = 80
_REMEDY = "Correct the plan or take them out of it; with `strict: false` in its section `session` it runs without them."
_EXIT_CODES = {"success": Exit.OK, "error": Exit.FAILED, "cancelled": Exit.INTERRUPTED}


@attrs.define
class TerminalAgent:
    """One session and what the command line knows about it.

    Attributes:
        session: Open.
        record: What the store keeps of it.
        latest: What the latest turn did.
        tokens: Of all turns of this process.
    """

    session: AmplifierSession
    store: SessionStore
    record: SessionRecord
    display: Display
    signal_handler: SignalHandler
    latest: TurnRecord = attrs.field(factory=TurnRecord)
    tokens: int = 0
    turns: int = 0

    def check(self, logged: LogNotices, *, lenient: bool = False, wanted: str | None = None) -> None:
        """Refuse to go on without a module of the plan: one that was to ask for permission may be among them.

        Args:
            logged: What the modules logged meanwhile: one that declines says why there.
            lenient: The plan itself says that modules may fail; then they are told, and only a provider is needed.
            wanted: The provider that the user asked for; no other one is to answer in its place.

        Raises:
            CommandError: There is no provider, or not the one that was asked for, or a module of the plan cannot be used.
        """
        failures = self.session.failures
        if not self.session.coordinator.get("providers"):
            others = [failure for failure in failures if failure.module_type != "provider"]
            raise CommandError("\n".join([self._without_provider(logged), *_listed(others)]))
        if wanted is not None and (reason := self._why_it_declined(wanted, logged)) is not None:
            raise CommandError(f"{self.record.provider} declined: {reason}{self._advice()}")
        if lenient:
            for failure in failures:
                self.display.notice(f"{failure.module_id} is not available: {_reason(failure.error)}", "warning")
        elif failures:
            counted = "1 module" if len(failures) == 1 else f"{len(failures)} modules"
            raise CommandError(
                "\n".join([f"{counted} of the plan cannot be used, so nothing was begun:", *_listed(failures), _REMEDY])
            )

    def _why_it_declined(self, wanted: str, logged: LogNotices) -> str | None:
        """Why the provider that was asked for is not there; None if it is, or as far as anybody can tell.

        What is mounted has names of the modules' own choice. Somebody must be missing, and have said so in the log.
        """
        mounted = self.session.coordinator.get("providers")
        failed = sum(failure.module_type == "provider" for failure in self.session.failures)
        entries = self.session.config.get("providers") or ()
        if {wanted, wanted.removeprefix("provider-")} & set(mounted) or len(mounted) + failed >= len(entries):
            return None
        return logged.take(self.record.provider or wanted)

    def _without_provider(self, logged: LogNotices) -> str:
        """Why there is nobody to ask, and what to do."""
        blamed = [failure for failure in self.session.failures if failure.module_type == "provider"]
        if blamed:
            reasons = "; ".join(f"{failure.module_id}: {_reason(failure.error)}" for failure in blamed)
            return f"no provider could be mounted: {reasons}{self._advice()}"
        asked = self.record.provider
        if asked is None:
            return f"the plan names no provider; add one to it or choose one with -p{self._advice()}"
        reason = logged.take(asked) or "it did not say why; `amplifier doctor` tells which keys are set"
        return f"{asked} declined: {reason}{self._advice()}"

    def _advice(self) -> str:
        if self.record.provider == OFFLINE_PROVIDER:
            return ""
        return ". To try things without a model: amplifier run -p offline"

    async def run_turn(self, prompt: str) -> Outcome:
        """Run one turn and show it.

        Raises:
            BrokenPipeError: Nobody reads the answer any more.
            OutputLostError: The answer cannot be written.
        """
        self._begin(prompt)
        token = self.session.coordinator.cancellation
        response: str | None = None
        try:
            with self.signal_handler.during_turn(token):
                async with self.session.stream(prompt) as events:
                    async for event in events:
                        self.latest.take(event)
                        self.display.show(event, self.latest)
                response = events.result
            was_stopped = self.session.status.status == "cancelled"
            outcome = Outcome(status="cancelled" if was_stopped else "success", response=response)
        except ExecutionCancelled as stopped:
            streamed = self.latest.unfinished or None
            outcome = Outcome(status="cancelled", response=streamed, error=error_message(stopped), exception=stopped)
        except (BrokenPipeError, OutputLostError):
            self._end(Outcome(status="cancelled"))
            raise
        except Exception as error:  # noqa: BLE001  # a turn runs everybody's code; what it raises is the turn's outcome
            outcome = Outcome(status="error", error=error_message(error), exception=error)
        except BaseException:  # the whole command is being cancelled
            self._end(Outcome(status="cancelled"))
            raise
        finally:
            self.display.clear_live_lines()
        try:
            self.display.end_turn(response)
        finally:
            self._end(outcome)
        return outcome

    def _begin(self, prompt: str) -> None:
        self.latest = TurnRecord()
        self.turns += 1
        title = self.record.title or redact_text(" ".join(prompt.split()))[:_TITLE_LENGTH] or None
        self.record = attrs.evolve(self.record, title=title, updated=now(), status=RUNNING)
        self.store.write(self.record)

    def _end(self, outcome: Outcome) -> None:
        self.tokens += self.latest.input_tokens + self.latest.output_tokens
        self.record = attrs.evolve(self.record, updated=now(), status=outcome.status)
        self.store.write(self.record)

    def stopped_message(self) -> str:
        """What is left of a turn that was stopped: the truth about what the next turn will know."""
        rest = "; the answer that was cut off is not" if self.latest.unfinished else ""
        return f"Stopped. What was asked and every finished step are kept{rest}."

    def files(self) -> dict[str, str]:
        """The session's files by what they are, as far as there are any where the command line puts them."""
        folder = self.store.folder(self.session.session_id)
        places = {"transcript": folder / FILE_NAME, "events": folder / EVENTS_FILE}
        return {name: str(path) for name, path in places.items() if path.exists()}


def exit_code_for(outcome: Outcome) -> Exit:
    """What the shell gets for a turn."""
    return _EXIT_CODES[outcome.status]


def _listed(failures: Sequence[ModuleFailure]) -> list[str]:
    return [f"  {failure.module_id}: {_reason(failure.error)}" for failure in failures]


def _reason(error: BaseException) -> str:
    """Why a module failed: where the cause is one of our own errors, its words are the better ones."""
    return error_message(error.__cause__ if isinstance(error.__cause__, AmplifierError) else error)
