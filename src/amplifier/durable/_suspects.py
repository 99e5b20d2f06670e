"""Admission of turns and calls, and the options of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypedDict

import anyio
import attrs

MAX_DEATHS = 3
"""Default number of workers that may die while they run a turn, for example out of memory."""

MAX_PAUSE = 60.0
"""Maximum number of seconds before a turn is retried after workers have died while running it."""


class EngineOptions(TypedDict, total=False):
    """Options of `open_engine`.

    Attributes:
        poll: Seconds between two checks of the running turns. A stop, an answer or an event may be
            delayed that long. 0.2 by default.
        pickup: Seconds between two checks of the queue. A turn may wait that long for a free
            worker. 1 by default. Each check costs an idle worker about 5 ms of processor time.
        lease: Seconds without a sign of life after which a worker counts as dead. 10 by default.
            A file has one worker, so it doesn't need a lease.
        patience: Seconds for which a worker retries an unreachable database before it gives up. 30
            by default.
        attempts: The number of workers that may die while running a turn before the turn fails. 3
            by default.
        stuck: Seconds for which a worker keeps its turns while their code blocks its event loop.
            300 by default.
        version: The version of the workers' code. A turn that has started runs only on workers with
            the same version, and a new turn runs on the latest version. With None, only the plan
            matters.
        encryption_key: A key of ``cryptography.fernet.Fernet``. Prompts, results, events and
            conversations are encrypted with it, and every process needs it. None stores them
            unencrypted.
    """

    poll: float
    pickup: float
    lease: float
    patience: float
    attempts: int
    stuck: float
    version: str | None
    encryption_key: str | bytes | None


@attrs.frozen(kw_only=True)
class Settings:
    """`EngineOptions` with their values.

    Raises:
        ValueError: An option is invalid.
    """

    poll: float = 0.2
    pickup: float = 1.0
    lease: float = 10.0
    patience: float = 30.0
    attempts: int = MAX_DEATHS
    stuck: float = 300.0
    version: str | None = None
    encryption_key: str | bytes | None = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        for name in ("poll", "pickup", "lease", "stuck", "attempts"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not value > 0
                or value == float("inf")
            ):
                raise ValueError(f"{name} must be a number above 0, got {value!r:.80}")
        patience: object = self.patience
        if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience >= 0:
            raise ValueError(f"patience must be a number of at least 0, got {patience!r:.80}")
        if self.attempts != int(self.attempts):
            raise ValueError(f"attempts must be a whole number, got {self.attempts!r}")
        version: object = self.version
        if version is not None and (not isinstance(version, str) or not version):
            raise ValueError(f"version must be a text or None, got {self.version!r:.80}")

    @property
    def suspect(self) -> range:
        """Numbers of dead workers for which the turn is a suspect and is retried alone."""
        return range((self.attempts + 1) // 2, self.attempts)

    def pause_after(self, deaths: int) -> float:
        """Return the seconds before a suspect is retried."""
        if deaths not in self.suspect:
            return 0.0
        return min(self.lease * 2.0 ** min(deaths - self.suspect.start, 10), MAX_PAUSE)


@attrs.frozen(kw_only=True)
class CallLimit:
    """Limits for the calls that each worker makes to one tool, or to models.

    Attributes:
        at_once: The maximum number of simultaneous calls. None for no limit.
        per_second: The maximum number of calls per second, evenly spread. None for no limit.
        retries: The number of times a failed call is repeated before the model receives the error.
            Only calls to tools that declare ``repeatable = True`` are repeated.
        backoff: Seconds before the first repetition. Each further pause is twice as long as the
            previous one, up to a minute.
    """

    at_once: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    per_second: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.gt(0))
    )
    retries: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    backoff: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))


class CallLimits:
    """Admits the calls of a worker's turns within its limits.

    Args:
        limits: The limits, keyed by tool name or ``model``.
    """

    def __init__(self, limits: Mapping[str, CallLimit]) -> None:
        self._limits = limits
        self._slots = {
            name: anyio.Semaphore(limit.at_once)
            for name, limit in limits.items()
            if limit.at_once is not None
        }
        self._next: dict[str, float] = {}

    def pauses(self, name: str) -> list[float]:
        """Return the seconds to wait before each retry of a tool."""
        limit = self._limits.get(name, CallLimit())
        return [
            min(limit.backoff * 2.0 ** min(number, 30), MAX_PAUSE)
            for number in range(limit.retries)
        ]

    async def enter(self, name: str) -> Callable[[], object]:
        """Wait until a call may start. Return a function to call when the call has ended."""
        limit, slots = self._limits.get(name), self._slots.get(name)
        if slots is not None:
            await slots.acquire()
        leave: Callable[[], object] = (lambda: None) if slots is None else slots.release
        try:
            if limit is not None and limit.per_second is not None:
                begins = max(self._next.get(name, 0.0), anyio.current_time())
                self._next[name] = begins + 1 / limit.per_second
                await anyio.sleep_until(begins)
        except BaseException:
            leave()
            raise
        return leave


NO_LIMITS = CallLimits({})


# A turn is a suspect if workers have died while running it. It pauses before its next attempt, and
# then runs alone, so that it can't kill a worker that is running other turns.


class Admission:
    """Decides when a worker starts a turn that DBOS has given it.

    Args:
        settings: The settings of the engine.
        is_asking: Returns whether an admitted turn only waits for an answer.
    """

    def __init__(self, settings: Settings, is_asking: Callable[[str], bool]) -> None:
        self._settings = settings
        self._is_asking = is_asking
        self._admitted: dict[object, str] = {}
        # Waiting suspects come first, then running ones.
        self._suspects: list[object] = []

    @asynccontextmanager
    async def admit(
        self,
        turn_id: str,
        deaths: int,
        pause: float,
        still_waits: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncIterator[None]:
        """Wait until a turn may start. The turn counts as running until the block exits.

        Args:
            turn_id: The turn.
            deaths: The number of workers that have died while running the turn.
            pause: Minimum number of seconds that a suspect waits.
            still_waits: Called while a suspect waits for others. False ends the wait.
        """
        ticket = object()
        is_suspect = deaths in self._settings.suspect
        if is_suspect:
            await anyio.sleep(max(pause, 0.0))
            self._suspects.append(ticket)
        try:
            while self._must_wait(ticket, is_suspect):
                if is_suspect and still_waits is not None and not await still_waits():
                    break
                await anyio.sleep(self._settings.poll)
            self._admitted[ticket] = turn_id
            yield
        finally:
            self._admitted.pop(ticket, None)
            if is_suspect:
                self._suspects.remove(ticket)

    def _must_wait(self, ticket: object, is_suspect: bool) -> bool:
        """Return whether a turn has to wait for a suspect, or as a suspect for the others.

        Turns that wait for an answer delay neither.
        """
        busy = [other for other, turn_id in self._admitted.items() if not self._is_asking(turn_id)]
        waiting = [other for other in self._suspects if other not in self._admitted]
        if is_suspect:
            return bool(busy) or waiting[0] is not ticket
        return bool(waiting) or any(other in self._suspects for other in busy)
