"""Several sessions with one loader: sys.path entries are held per session and go with the last one that uses them."""

from __future__ import annotations

import gc
import sys
import weakref

import anyio
import pytest

from amplifier import AmplifierSession, ModuleLoader, ModuleLoadError, SessionStateError
from tests._support.small_agent import Loop, Memory, mounting, repeat_prompt
from tests.loading._forge import MOUNT, forget_imports, root

BROKEN = "async def mount(coordinator, config):\n    raise RuntimeError('broke')\n"


@pytest.fixture(autouse=True)
def _imports_forgotten(tmp_path):
    yield
    forget_imports(tmp_path)


@pytest.fixture
def checkout(tmp_path):
    """Writes the checkout of a module and returns the entry that it needs on sys.path."""
    return lambda module_id, body=MOUNT: str(root(tmp_path.resolve(), module_id, body))


@pytest.fixture
def loader(tmp_path):
    made = ModuleLoader(search_paths=[tmp_path])
    made.register("loop-small", mounting(Loop(repeat_prompt)))
    made.register("context-small", mounting(Memory()))
    yield made
    made.cleanup()


def session_with(loader, *tools, strict=False):
    plan = {"session": {"orchestrator": "loop-small", "context": "context-small", "strict": strict}}
    return AmplifierSession(
        {**plan, "tools": [{"module": module_id} for module_id in tools]}, loader=loader
    )


class Resolver:
    """Finds one root for everything, after a real wait."""

    def __init__(self, root):
        self.root = root

    async def async_resolve(self, module_id, source_hint=None, profile_hint=None):
        await anyio.lowlevel.checkpoint()
        if not module_id.startswith("tool-"):
            raise ModuleNotFoundError(f"no source for {module_id}")
        return self

    def resolve(self):
        return self.root


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("resolved", [False, True])
async def test_last_session_removes_path_entry(checkout, loader, first, resolved):
    entry = checkout("tool-x")
    sessions = [session_with(loader, "tool-x") for _ in range(2)]
    for session in sessions:
        if resolved:
            session.coordinator.mount("module-source-resolver", Resolver(entry))
        await session.initialize()
        assert session.failures == []
    assert sys.path.count(entry) == 1
    assert "1 sys.path entries held" in repr(loader)
    await sessions[first].cleanup()
    assert entry in sys.path
    await sessions[first].cleanup()  # a second time
    assert entry in sys.path
    await sessions[1 - first].cleanup()
    assert entry not in sys.path
    assert "0 sys.path entries held" in repr(loader)


async def test_module_imports_neighbours_after_other_closes(checkout, loader, tmp_path):
    body = "async def mount(coordinator, config):\n    coordinator.register_capability('late', lambda: __import__('lazy_y'))\n"
    entry = checkout("tool-y", body)
    (tmp_path / "amplifier-module-tool-y" / "lazy_y.py").write_text("")
    async with session_with(loader, "tool-y") as outer:
        async with session_with(loader, "tool-y"):
            pass
        assert outer.coordinator.get_capability("late")().__name__ == "lazy_y"
    assert entry not in sys.path


@pytest.mark.parametrize("how", ["fails", "cancelled", "plan changed"])
async def test_failed_opening_releases_own_entries(checkout, loader, how):
    entries = {
        "tool-a": checkout("tool-a"),
        "tool-b": checkout("tool-b"),
        "tool-broken": checkout("tool-broken", BROKEN),
    }

    async def wait(coordinator, config):
        scope.cancel()
        await anyio.sleep_forever()

    loader.register("tool-wait", wait)
    async with session_with(loader, "tool-a"):
        if how == "fails":
            with pytest.raises(ModuleLoadError, match="tool-broken"):
                async with session_with(loader, "tool-a", "tool-b", "tool-broken", strict=True):
                    pass
        elif how == "cancelled":
            with anyio.CancelScope() as scope:
                async with session_with(loader, "tool-a", "tool-b", "tool-wait"):
                    pass
        else:
            session = session_with(loader, "tool-b")
            session.config["tools"] = "nonsense"
            with pytest.raises(ValueError, match="tools"):
                await session.initialize()
        assert [name for name, entry in entries.items() if entry in sys.path] == ["tool-a"]


async def test_child_holds_own_entries(checkout, loader):
    entry = checkout("tool-x")
    parent = session_with(loader, "tool-x")
    await parent.initialize()
    async with parent.fork() as child:
        assert child.loader is not loader
    assert entry in sys.path
    child = parent.fork()
    await child.initialize()
    await parent.cleanup()
    assert entry in sys.path
    await child.cleanup()
    assert entry not in sys.path


async def test_last_session_releases_manual_loads(checkout, loader):
    entry = checkout("tool-x")

    async def mount(coordinator, config):
        await coordinator.loader.load("tool-x")

    loader.register("tool-loads", mount)
    async with session_with(loader):
        async with session_with(loader, "tool-loads"):
            pass
        assert entry in sys.path
    assert entry not in sys.path
    async with AmplifierSession(session_with(loader, "tool-loads").config, loader=loader):
        assert entry in sys.path
    assert entry not in sys.path


async def test_manual_loader_cleanup_releases_everything(checkout, loader):
    held, by_hand = checkout("tool-x"), checkout("tool-y")
    await loader.load("tool-y")
    async with session_with(loader, "tool-x"):
        assert {held, by_hand} <= set(sys.path)
        loader.cleanup()
        loader.cleanup()
        assert not {held, by_hand} & set(sys.path)
        await loader.load("tool-y")
    assert not {held, by_hand} & set(sys.path)


@pytest.mark.filterwarnings("ignore:session .* was dropped while it was open:ResourceWarning")
async def test_dropped_session_is_not_kept_by_loader(checkout, loader):
    checkout("tool-x")

    async def open_and_drop():
        session = session_with(loader, "tool-x")
        await session.initialize()
        return weakref.ref(session)

    gone = await open_and_drop()
    await anyio.lowlevel.checkpoint()
    gc.collect()
    assert gone() is None


async def test_application_loader_is_cleaned_per_session():
    class Loader:
        def load(self, module_id, config=None, source_hint=None):
            return lambda coordinator: (
                Loop(repeat_prompt) if module_id == "loop-small" else Memory()
            )

    class Closing(Loader):
        cleanups = 0

        def cleanup(self):
            self.cleanups += 1

        def release(self, *args):  # a name of the application's own
            raise AssertionError("not for the kernel")

        acquire = release

    closing = Closing()
    for made in (Loader(), closing):
        async with session_with(made) as one, session_with(made) as two:
            assert await one.execute("hi") == await two.execute("hi") == "hi"
        with pytest.raises(SessionStateError):
            await one.execute("hi")
    assert closing.cleanups == 2
