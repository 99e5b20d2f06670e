"""Reads the configuration, writes every event, and finds the events of other modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from amplifier.contracts import Coordinator, Hooks
from amplifier.events import ALL_EVENTS, OUR_EVENTS, PROVIDER_REQUEST
from amplifier.models import HookResult

from ..._shared.failure import ToolFailure
from ..._shared.worker_threads import Stop, Workers
from ._log_file import EventFile
from ._log_record import TOP_LEVEL, broken_line, level_of, write_line
from ._options import LEVELS, MODULE, LogOptions, read_log_options

logger = logging.getLogger("amplifier.modules.hooks-logging")

_CHANNEL = "observability.events"
_REQUEST_FIELDS = ("provider", "model", "iteration", "lvl", "level", *TOP_LEVEL)
"""Of ``provider:request``, whose messages are the whole conversation: each of them was logged when it was new."""
_OPENING_SECONDS = 10.0


class EventLog:
    """The handler: one line per event.

    A file that cannot be written does not affect the session: the first failure is logged, all are counted, and the count
    is logged on closing.

    Args:
        options: The configuration.
        hooks: The registry to listen to.

    Attributes:
        written: Lines that this session wrote.
        lost: Events that could not be written.
    """

    def __init__(self, options: LogOptions, hooks: Hooks) -> None:
        self.options = options
        self.written = 0
        self.lost = 0
        self._hooks = hooks
        self._file = EventFile(options.path, options.max_bytes, options.keep)
        self._lowest = LEVELS.index(options.level)
        self._registered: dict[str, Callable[[], None]] = {}
        self._last_error: OSError | None = None

    def __repr__(self) -> str:
        return f"<EventLog {str(self.options.path)!r}, {self.written} written, {self.lost} lost>"

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Write one event; always returns continue."""
        try:
            level = level_of(event, data)
            if LEVELS.index(level) < self._lowest:
                return HookResult()
            line = write_line(event, level, data, self.options)
        except Exception as error:  # noqa: BLE001 - the payload may contain third-party objects that fail when read
            logger.warning("the payload of %r cannot be written: %s", event, type(error).__name__)
            line = broken_line(event, error)
        try:
            self._file.append(line)
            self.written += 1
        except OSError as error:
            self._note_loss(error)
        return HookResult()

    def _note_loss(self, error: OSError) -> None:
        if self.lost == 0 and self._last_error is None:
            logger.warning("events cannot be written to %s: %s; the session goes on", self.options.path, error)
        self._last_error = error
        self.lost += 1

    async def open(self) -> None:
        """Open the file; a failure is logged, not raised."""

        def work(_stop: Stop) -> None:
            self._file.open()

        try:
            await Workers(threads=1, timeout=_OPENING_SECONDS).run(work, what=f"opening {self.options.path}")
        except (OSError, ToolFailure) as error:
            logger.warning("no events will be written to %s: %s; the session goes on", self.options.path, error)
            self._last_error = error if isinstance(error, OSError) else TimeoutError(str(error))

    def listen(self, events: Iterable[str]) -> None:
        """Listen to events, each once, if the options include them."""
        for event in events:
            if event not in self._registered and "*" not in self._registered and self.options.wants(event):
                fields = _REQUEST_FIELDS if event == PROVIDER_REQUEST else None
                self._registered[event] = self._hooks.register(
                    event, self, priority=self.options.priority, name=MODULE, fields=fields
                )

    async def discover(self, coordinator: Coordinator) -> None:
        """Listen to the events other modules announce, as a contribution or, as older modules do, as a capability."""
        if not self.options.auto_discover:
            return
        announced = [coordinator.get_capability(_CHANNEL), *await coordinator.collect_contributions(_CHANNEL)]
        for names in announced:
            if isinstance(names, str):
                self.listen([names])
            elif isinstance(names, Iterable):
                self.listen(name for name in names if isinstance(name, str) and name)

    def close(self) -> None:
        """Stop listening, close the file and log how many events were lost; idempotent."""
        registered, self._registered = self._registered, {}
        for unregister in registered.values():
            unregister()
        was_open = self._file.is_open
        self._file.close()
        if self.lost and registered:
            reason = self._last_error
            logger.warning("%d events were not written to %s: %s", self.lost, self.options.path, reason)
        elif was_open:
            logger.debug("%d events were written to %s", self.written, self.options.path)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], None]:
    """Start writing events; see `LogOptions` and the module's reference page for the configuration.

    Returns:
        The cleanup, which closes the log.

    Raises:
        PlanError: The configuration is wrong.
    """
    log = EventLog(read_log_options(coordinator, config), coordinator.hooks)
    logs: list[EventLog] = coordinator.session_state.setdefault(MODULE, [])

    def close() -> None:
        log.close()
        if log in logs:
            logs.remove(log)

    try:
        await log.open()
        additional = log.options.additional_events
        # "*" matches every event; events of any other name would be written twice.
        log.listen(["*"] if "*" in additional else [*ALL_EVENTS, *OUR_EVENTS, *additional])
        logs.append(log)
        logger.info("events of session %s go to %s", coordinator.session_id, log.options.path)
    except BaseException:
        close()
        raise
    return close


async def on_session_ready(coordinator: Coordinator) -> None:
    """Listen to the events of the other modules, which are all mounted now."""
    for log in list(coordinator.session_state.get(MODULE, ())):
        await log.discover(coordinator)
