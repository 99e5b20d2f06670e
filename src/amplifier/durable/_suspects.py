"""When turns and calls may begin. Turns that workers have died with: each waits a while before the next attempt and runs alone, so that it takes no other one along."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypedDict

import anyio
import attrs

MOST_DEATHS = 3
"""Workers that may die while they run a turn, for want of memory for example, unless an engine is opened with another number."""

LONGEST_PAUSE = 60.0
"""Seconds before a turn that workers have died with is tried again."""


class EngineOptions(TypedDict, total=False):
    """Options of `open_engine`.

    Attributes:
        poll: Seconds between two looks at the turns that run: how long a stop, an answer or an event may take to arrive; 0.2.
        pickup: Seconds between two looks at the queue: how long a turn may wait for a worker that is free; 1. Each look costs
            a worker without work about 5 ms of processor time.
        lease: Seconds without a sign of life after which a worker counts as dead; 10. A file has one worker, and needs none.
        patience: Seconds for which a database that went away is tried again before a worker gives up; 30.
        attempts: Workers that may die while they run a turn; then the turn fails. 3 by default.
        stuck: Seconds for which a worker keeps its turns while code of theirs blocks its event loop; 300.
        version: Of the code of the workers. A turn that has begun runs on workers of its version only, and a new one on those
            of the latest. None leaves the decision to the plan alone.
        encryption_key: A key of ``cryptography.fernet.Fernet``. Prompts, results, events and conversations are encrypted with
            it, and every process needs it. None stores them as they are.
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
        ValueError: One of them makes no sense.
    """

    poll: float = 0.2
    pickup: float = 1.0
    lease: float = 10.0
    patience: float = 30.0
    attempts: int = MOST_DEATHS
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
        if self.attempts != int(self.attempts):
            raise ValueError(f"attempts must be a whole number, got {self.attempts!r}")
        version: object = self.version
        if version is not None and (not isinstance(version, str) or not version):
            raise ValueError(f"version must be a text or None, got {self.version!r:.80}")

    @property
    def suspect(self) -> range:
        """With how many dead workers a turn may be the cause, and is tried again."""
        return range((self.attempts + 1) // 2, self.attempts)

    def pause_after(self, deaths: int) -> float:
        """Seconds before such a turn is tried again."""
        if deaths not in self.suspect:
            return 0.0
        return min(self.lease * 2.0 ** min(deaths - self.suspect.start, 10), LONGEST_PAUSE)


@attrs.frozen(kw_only=True)
class CallLimit:
    """How many calls of a tool, or of models, are made by each worker.

    Attributes:
        at_once: At the same time; None for no limit.
        per_second: In a second, evenly spread; None for no limit.
        retries: How often a call that failed is made again before the model sees the error; only of a tool that declares
            ``repeatable = True``.
        backoff: Seconds before the first of them; each further pause is twice as long, up to a minute.
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
    """Lets calls of all turns of a worker pass as its limits allow.

    Args:
        limits: By the name of a tool, or ``model``.
    """

    def __init__(self, limits: Mapping[str, CallLimit]) -> None:
        self._limits = limits
        self._slots = {
            name: anyio.Semaphore(each.at_once)
            for name, each in limits.items()
            if each.at_once is not None
        }
        self._next: dict[str, float] = {}

    def pauses(self, name: str) -> list[float]:
        """Seconds before each further try of a tool."""
        limit = self._limits.get(name, CallLimit())
        return [
            min(limit.backoff * 2.0 ** min(number, 30), LONGEST_PAUSE)
            for number in range(limit.retries)
        ]

    async def enter(self, name: str) -> Callable[[], object]:
        """Wait until a call may begin; returns what has to be called at its end."""
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


class Admission:
    """Decides when a worker begins a turn that it was given.

    Args:
        settings: Of the engine.
        is_asking: Whether a turn that was let in waits for an answer, and does nothing else.
    """

    def __init__(self, settings: Settings, is_asking: Callable[[str], bool]) -> None:
        self._settings = settings
        self._is_asking = is_asking
        self._admitted: dict[object, str] = {}
        self._suspects: list[object] = []  # waiting, then running

    @asynccontextmanager
    async def admit(
        self,
        turn_id: str,
        deaths: int,
        pause: float,
        still_waits: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncIterator[None]:
        """Wait until a turn may begin; it counts as running until the block is left.

        Args:
            turn_id: The turn.
            deaths: Workers that have died while they ran it.
            pause: Seconds that a suspect waits in any case.
            still_waits: Asked while a suspect waits for others; if not, there is nothing to wait for.
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
        """Whether a turn has to wait for a suspect, or as a suspect for the others; not for those that wait for an answer."""
        busy = [other for other, turn_id in self._admitted.items() if not self._is_asking(turn_id)]
        waiting = [other for other in self._suspects if other not in self._admitted]
        if is_suspect:
            return bool(busy) or waiting[0] is not ticket
        return bool(waiting) or any(other in self._suspects for other in busy)
