"""What one session can see of another: containers and classes that both refer to."""

from __future__ import annotations

import pytest

from amplifier.conformance.oracles.state import contents, state_of
from amplifier.conformance.target.locate import find_target, load, load_anew
from amplifier.conformance.target.mounted import CheckContext
from tests.conformance.modules import SOUND_TOOL, write_module

TAKES = '            text = input.get("text")\n'
CLASS = "    class Echo:\n"
ADDED = {
    "a container of the class": ("seen = []", "self.seen.append(1)", {"Echo.seen"}),
    "a number of the class": ("calls = 0", "Echo.calls += 1", {"Echo"}),
    "what a container of the class holds": ("seen = {'all': []}", "self.seen['all'].append(1)", {"Echo.seen.all"}),
    "an object of the session": ("seen = 0", "self.seen += 1", set()),
}


@pytest.mark.parametrize(("declared", "done", "changed"), ADDED.values(), ids=ADDED)
async def test_what_a_call_in_one_session_changes_for_another(tmp_path, monkeypatch, declared, done, changed):
    monkeypatch.syspath_prepend(tmp_path)
    source = SOUND_TOOL.replace(CLASS, f"{CLASS}        {declared}\n").replace(TAKES, f"            {done}\n{TAKES}")
    loaded = load_anew(load(find_target(write_module(tmp_path, source), "tool"), {}, {}))
    ctx = CheckContext(loaded=loaded, backend="asyncio")
    async with ctx.mount() as used, ctx.mount(neighbour=used) as other:
        state = state_of(other)
        before = contents(state)
        await used.instance.execute({"text": "a"})
        assert {place for place, now in contents(state).items() if now != before[place]} == changed


async def test_a_container_that_a_handler_encloses_is_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = """
        from amplifier import HookResult


        async def mount(coordinator, config):
            heard = []

            async def handler(event, data):
                heard.append(event)
                return HookResult(action="continue")

            return coordinator.hooks.register("tool:pre", handler, name="hears")
    """
    loaded = load(find_target(write_module(tmp_path, source, "hooks_hears.py"), "hook"), {}, {})
    async with CheckContext(loaded=loaded, backend="asyncio").mount() as mounted:
        assert state_of(mounted)["heard"] == []
