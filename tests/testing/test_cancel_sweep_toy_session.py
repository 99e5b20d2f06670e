"""The sweep on something shaped like an agent session: planted bugs are found at their lines, the sound one is clean.

Five modules are opened, three tools run side by side, everything is closed again. Each bug below was seen in the wild.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from amplifier.testing import MODES, SweepReport, cancel_everywhere

SCOPED = ("trio", "asyncio-scope")
TOOL_CALLS = ("call-1", "call-2", "call-3")


async def hold_against_native_cancels(section: Callable[[], Awaitable[None]]) -> None:
    """Finish a section whatever happens to the caller; a shield alone does not stop ``Task.cancel()`` on asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with anyio.CancelScope(shield=True):
            await section()
        return
    inner = asyncio.ensure_future(section())
    held_back: asyncio.CancelledError | None = None
    while not inner.done():
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait({inner})
        except asyncio.CancelledError as error:
            held_back = error
    inner.result()
    if held_back is not None:
        raise held_back


class ToySession:
    """A world for one trial; `bugs` lists what is wrong with it."""

    modules = ("orchestrator", "context", "provider", "tool-a", "tool-b")

    def __init__(self, *bugs: str) -> None:
        self.bugs = bugs
        self.opened: list[str] = []
        self.registered: list[str] = []
        self.transcript: list[tuple[str, str]] = []

    async def scenario(self) -> None:
        try:
            for name in self.modules:
                await self.open_module(name)
            await self.emit("session:start")
            await self.turn()
            await self.emit("session:end")
        finally:
            if "unshielded cleanup" in self.bugs:
                await self.close_modules()
            elif "shield only" in self.bugs:
                with anyio.CancelScope(shield=True):
                    await self.close_modules()
            else:
                await hold_against_native_cancels(self.close_modules)

    async def open_module(self, name: str) -> None:
        await anyio.sleep(0.01)
        self.opened.append(name)
        if "late register" in self.bugs:
            await self.emit("module:mounted")
        self.registered.append(name)
        if "late register" not in self.bugs:
            await self.emit("module:mounted")

    async def close_modules(self) -> None:
        while self.registered:
            name = self.registered.pop()
            await anyio.sleep(0.01)  # closing does I/O, too
            self.opened.remove(name)

    async def emit(self, event: str) -> None:
        if "swallowing dispatcher" in self.bugs:
            with contextlib.suppress(BaseException):
                await anyio.lowlevel.checkpoint()
        else:
            await anyio.lowlevel.checkpoint()

    async def turn(self) -> None:
        await self.emit("provider:request")
        await anyio.sleep(1)
        results: dict[str, str] = {}

        async def run_tool(call: str) -> None:
            await self.emit("tool:pre")
            await anyio.sleep(0.1)
            await self.emit("tool:post")
            results[call] = "done"

        self.transcript += [("call", call) for call in TOOL_CALLS]
        try:
            async with anyio.create_task_group() as tools:
                for call in TOOL_CALLS:
                    tools.start_soon(run_tool, call)
        finally:
            answered = results if "dangling tool call" in self.bugs else TOOL_CALLS
            self.transcript += [("result", call) for call in answered]

    def check(self) -> list[str]:
        results = [call for kind, call in self.transcript if kind == "result"]
        calls = [call for kind, call in self.transcript if kind == "call"]
        return [f"{name} was never closed" for name in self.opened] + [
            f"{call} has {results.count(call)} results" for call in calls if results.count(call) != 1
        ]


def sweep(*bugs: str, modes: tuple[str, ...] = MODES) -> SweepReport:
    return cancel_everywhere(lambda: ToySession(*bugs), modes=modes)


def places(report: SweepReport, mode: str) -> set[str]:
    return {violation.where.rpartition(" ")[2] for violation in report.violations if violation.mode == mode}


@pytest.mark.parametrize("mode", MODES)
def test_the_sound_session_holds_wherever_it_is_cancelled(mode: str) -> None:
    report = sweep(modes=(mode,))
    assert report.ok, str(report)
    assert report.points[mode] >= 25
    assert report.notes == []


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_between_opening_and_registering_is_found_there(mode: str) -> None:
    report = sweep("late register", modes=(mode,))
    assert places(report, mode) >= {"ToySession.emit"}
    if mode in SCOPED:
        assert [violation.detail for violation in report.violations] == [
            f"{name} was never closed" for name in ToySession.modules
        ], "exactly one point per module"
        assert places(report, mode) == {"ToySession.emit"}


@pytest.mark.parametrize("mode", MODES)
def test_cleanup_that_can_be_cancelled_is_found(mode: str) -> None:
    report = sweep("unshielded cleanup", modes=(mode,))
    assert {violation.kind for violation in report.violations} == {"INVARIANT"}
    assert "orchestrator was never closed" in {violation.detail for violation in report.violations}


@pytest.mark.parametrize("mode", MODES)
def test_a_shield_holds_against_scopes_and_not_against_native_cancels(mode: str) -> None:
    report = sweep("shield only", modes=(mode,))
    assert report.ok == (mode in SCOPED), str(report)
    if mode == "asyncio-native":
        assert places(report, mode) == {"ToySession.close_modules"}
        assert {violation.scopes for violation in report.violations} == {("shielded",)}


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_call_without_result_is_found(mode: str) -> None:
    report = sweep("dangling tool call", modes=(mode,))
    assert {violation.detail for violation in report.violations} == {f"{call} has 0 results" for call in TOOL_CALLS}


@pytest.mark.parametrize("mode", MODES)
def test_a_dispatcher_that_eats_cancellation_is_harmless_to_scopes_only(mode: str) -> None:
    report = sweep("swallowing dispatcher", modes=(mode,))
    assert report.ok == (mode in SCOPED), str(report)
    if mode == "asyncio-native":
        assert {violation.kind for violation in report.violations} == {"SWALLOWED"}
        assert places(report, mode) == {"ToySession.emit"}
        assert len({violation.k for violation in report.violations}) == len(ToySession.modules) + len(
            ("session:start", "provider:request", "session:end")
        )


@pytest.mark.parametrize("bugs", [(), ("late register",), ("unshielded cleanup", "dangling tool call")])
def test_two_sweeps_with_one_seed_report_the_same(bugs: tuple[str, ...]) -> None:
    first, second = sweep(*bugs), sweep(*bugs)
    assert first.as_dict() == second.as_dict()
    assert first.traces == second.traces
    assert str(first) == str(second)
