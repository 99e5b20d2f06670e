"""Finds the cassette of the session tree, mounts the recorded providers and wraps those of the plan."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import attrs

from amplifier.contracts import Coordinator, current_call
from amplifier.models import to_dict

from .._shared.configuration import read_options
from .._tool_base import Stop, Workers
from ._cassette import Cassette
from ._file import read_cassette, write_cassette
from ._options import MODULE, ReplayOptions
from ._providers import RecordingProvider, ReplayProvider, recording_provider
from ._recording import SessionRecording
from ._scrubbing import Scrubber
from ._sharing import take_seat

logger = logging.getLogger("amplifier.modules.provider-replay")

_FILE_SECONDS = 10.0
_INFO = ("id", "display_name", "capabilities", "defaults")

_sessions: WeakValueDictionary[str, SessionRecording] = WeakValueDictionary()
"""The open sessions by id: a child session finds the cassette of its parent, which its plan can only name."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the recorded providers; `on_session_ready` wraps those that other modules mount.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which writes the file if something was recorded; None without a ``cassette`` in the configuration.

    Raises:
        PlanError: The configuration is wrong, or the file is missing or no cassette.
    """
    options = read_options(ReplayOptions, MODULE, config)
    if options.cassette is None:
        logger.warning("%s is not mounted: its config has no `cassette`, the file with the recordings", MODULE)
        return None
    recording = await _open(coordinator, options, options.cassette.absolute())
    cassette = recording.cassette
    made: dict[str, RecordingProvider | ReplayProvider] = {}
    if not cassette.records:
        for name in cassette.providers:
            if name not in coordinator.get("providers"):
                made[name] = ReplayProvider(coordinator, name, recording)
                await coordinator.mount("providers", made[name], name=name)
    coordinator.session_state[MODULE] = (recording, made)
    _sessions[coordinator.session_id] = recording

    async def close() -> None:
        mounted = coordinator.get("providers")
        for name, provider in made.items():
            await provider.aclose()
            if isinstance(provider, RecordingProvider) and mounted.get(name) is provider:
                mounted[name] = provider.inner
        made.clear()
        if recording.seat is None:
            return
        try:
            if cassette.is_changed:
                await _in_thread(lambda: write_cassette(cassette), f"writing {cassette.path}")
                logger.info("%d answers are recorded in %s", len(cassette.exchanges), cassette.path)
        finally:
            recording.seat.leave()

    return close


async def on_session_ready(coordinator: Coordinator) -> None:
    """Wrap the providers of the other modules, which are all mounted now: they record, or they may not be asked at all."""
    state = coordinator.session_state.get(MODULE)
    if state is None:
        return
    recording, made = state
    cassette: Cassette = recording.cassette
    mounted = coordinator.get("providers")
    for name, provider in list(mounted.items()):
        if name in made:
            continue
        if cassette.records:
            info = to_dict(provider.get_info())
            cassette.providers[name] = recording.scrubber.scrub({key: info[key] for key in _INFO if key in info})
            made[name] = recording_provider(coordinator, name, provider, recording)
        else:
            made[name] = ReplayProvider(coordinator, name, recording)
        mounted[name] = made[name]  # not mount(), which would take it for two modules that claim one name


async def _open(coordinator: Coordinator, options: ReplayOptions, path: Path) -> SessionRecording:
    parent = _sessions.get(coordinator.parent_id or "")
    if parent is not None and parent.cassette.path == path:
        call = current_call()
        is_in_call = call is not None and call.session_id == coordinator.parent_id
        name = parent.scrubber.scrub(call.call_id) if call is not None and is_in_call else "fork"
        return attrs.evolve(parent, place=f"{parent.place}/{name}", seat=None)
    seat = take_seat(path, options)
    try:
        cassette = seat.take(await _in_thread(lambda: read_cassette(path, seat.mode), f"reading {path}"))
        scrubber = Scrubber(options.placeholders, coordinator.config)
    except BaseException:
        seat.leave()
        raise
    place = seat.place(cassette)
    return SessionRecording(cassette=cassette, options=options, scrubber=scrubber, place=place, seat=seat)


async def _in_thread(work: Callable[[], Any], what: str) -> Any:
    def run(_stop: Stop) -> Any:
        return work()

    return await Workers(threads=1, timeout=_FILE_SECONDS).run(run, what=what)
