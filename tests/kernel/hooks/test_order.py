"""Who is called, and in which order: arbitrary programs of the registry against a model of a few lines (L7)."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel import HookRegistry
from tests.kernel.hooks.hook_registry import of_module

EVENTS = ["a", "b", "*"]
events = st.sampled_from(EVENTS)
handler_names = st.sampled_from(["x", "y", "z"])
modules = st.sampled_from([None, "hooks-m", "hooks-n"])

# A step is a tuple: what to do, and its arguments. Indices point at registrations made so far.
plain_steps = st.one_of(
    st.tuples(st.just("register"), events, st.integers(-2, 2), handler_names, modules),
    st.tuples(st.just("remove"), st.integers(0, 7)),
    st.tuples(st.just("unregister"), handler_names),
    st.tuples(st.just("unregister as"), modules, handler_names),
    st.tuples(st.just("undo"), st.sampled_from(["hooks-m", "hooks-n"])),
    st.tuples(st.just("emit"), st.sampled_from(["a", "b", "c"])),
)
steps = st.one_of(
    plain_steps,
    st.tuples(
        st.just("register scripted"),
        events,
        st.integers(-2, 2),
        handler_names,
        st.lists(plain_steps, max_size=3),
    ),
)
programs = st.lists(steps, max_size=14)


@attrs.define(eq=False)
class Entry:
    number: int
    event: str
    priority: int
    name: str
    module: str | None
    script: list[Any]
    live: bool = True


class Model:
    """The registry as the design describes it: order is (priority, registration), a dispatch keeps its snapshot."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.log: list[Any] = []

    def run(self, step: Any) -> None:
        what, *rest = step
        live = [entry for entry in self.entries if entry.live]
        if what == "register":
            event, priority, name, module = rest
            self.entries.append(Entry(len(self.entries), event, priority, name, module, []))
        elif what == "register scripted":
            event, priority, name, script = rest
            self.entries.append(Entry(len(self.entries), event, priority, name, None, list(script)))
        elif what == "remove":
            if rest[0] < len(self.entries):
                self.entries[rest[0]].live = False
        elif what == "undo":
            for entry in live:
                entry.live = entry.module != rest[0]
        elif what == "emit":
            self.emit(rest[0])
        else:
            module, name = (None, *rest) if what == "unregister" else rest
            mine = [e for e in live if e.name == name and (module is None or e.module == module)]
            if mine:
                mine[-1].live = False

    def emit(self, event: str) -> None:
        heard = [entry for entry in self.entries if entry.live and entry.event in (event, "*")]
        for entry in sorted(heard, key=lambda entry: (entry.priority, entry.number)):
            if entry.live:
                self.log.append((event, entry.number))
                script, entry.script = entry.script, []
                for step in script:
                    self.run(step)

    def listing(self) -> dict[str, list[str]]:
        ordered = sorted(self.entries, key=lambda entry: (entry.priority, entry.number))
        return {event: [e.name for e in ordered if e.live and e.event == event] for event in EVENTS}


class Real:
    """The same steps on the real registry; every second handler is async."""

    def __init__(self) -> None:
        self.hooks = HookRegistry()
        self.removers: list[Any] = []
        self.log: list[Any] = []

    async def run(self, step: Any) -> None:
        what, *rest = step
        if what == "register":
            event, priority, name, module = rest
            self.register(event, priority, name, module, [])
        elif what == "register scripted":
            event, priority, name, script = rest
            self.register(event, priority, name, None, list(script))
        elif what == "remove":
            if rest[0] < len(self.removers):
                self.removers[rest[0]]()
        elif what == "undo":
            self.hooks.unregister_owner(rest[0])
        elif what == "emit":
            await self.hooks.emit(rest[0], {})
        elif what == "unregister":
            self.hooks.unregister(rest[0])
        else:
            module, name = rest
            self.of(module).unregister(name)

    def register(
        self, event: str, priority: int, name: str, module: str | None, script: list[Any]
    ) -> None:
        number = len(self.removers)

        async def acting(heard: str, data: dict[str, Any]) -> None:
            self.log.append((heard, number))
            todo = script[:]
            script.clear()
            for step in todo:
                await self.run(step)

        def noting(heard: str, data: dict[str, Any]) -> None:
            self.log.append((heard, number))

        handler = acting if script or number % 2 else noting
        self.removers.append(self.of(module).register(event, handler, priority, name))

    def of(self, module: str | None) -> HookRegistry:
        return self.hooks if module is None else of_module(self.hooks, module)


@given(programs)
async def test_dispatch_order_matches_model(program):
    model, real = Model(), Real()
    for step in program:
        # An emit after every step, so that nothing the registry remembers of earlier ones can go stale unnoticed.
        for move in (step, ("emit", "a"), ("emit", "b"), ("emit", "c")):
            model.run(move)
            await real.run(move)
        assert real.log == model.log
        listing = real.hooks.list_handlers()
        assert {event: listing.get(event, []) for event in EVENTS} == model.listing()
        assert all(
            real.hooks.list_handlers(event) == {event: model.listing()[event]} for event in EVENTS
        )
    live = [entry for entry in model.entries if entry.live]
    now = real.hooks.statistics()
    assert (now.handlers, now.events) == (len(live), len({entry.event for entry in live}))


@given(
    st.lists(
        st.tuples(
            st.just("register scripted"),
            st.sampled_from(["a", "*"]),
            st.integers(-1, 1),
            handler_names,
            st.lists(
                plain_steps | st.tuples(st.just("remove"), st.integers(0, 4)),
                min_size=1,
                max_size=2,
            ),
        ),
        min_size=2,
        max_size=5,
    )
)
async def test_changes_during_dispatch_match_model(
    registrations,
):
    model, real = Model(), Real()
    for step in [*registrations, ("emit", "a"), ("emit", "a")]:
        model.run(step)
        await real.run(step)
    assert real.log == model.log


@given(programs)
async def test_removing_everything_leaves_nothing(program):
    real = Real()
    for step in program:
        await real.run(step)
    for remove in real.removers:
        remove()
        remove()
    heard = len(real.log)
    for event in ("a", "b", "c"):
        assert (await real.hooks.emit(event, {"n": 1})).data == {"n": 1}
    assert len(real.log) == heard
    assert real.hooks.statistics().handlers == 0
