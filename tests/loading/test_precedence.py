"""Several modules with one id: which one is used, how a plan pins another, and what the listing shows."""

from __future__ import annotations

import logging
import sys

import pytest

from amplifier import AmplifierSession
from amplifier.errors import ModuleConflictError, ModuleLoadError
from amplifier.loading import ModuleLoader
from amplifier.loading.discovery import is_pin
from amplifier.testing import MockContextManager
from tests.loading._forge import Coordinator, distribution, package, root, write

OURS = "amplifier.modules.tools.todo"


@pytest.fixture
def published(site):
    """A published module with the id of a built-in one."""
    distribution(
        site,
        "amplifier_module_tool_todo",
        {"tool-todo": "amplifier_module_tool_todo:mount"},
        version="1.2",
    )
    package(site, "amplifier_module_tool_todo")
    return "amplifier_module_tool_todo"


def logged(caplog):
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno == logging.INFO and r.name.startswith("amplifier.load")
    ]


async def loaded(source=None, loader=None):
    return (await (loader or ModuleLoader()).load("tool-todo", source_hint=source)).mount.__module__


# ── who wins ─────────────────────────────────────────────────────────────────────────────────────


async def test_installed_module_precedes_built_in(published, caplog):
    with caplog.at_level(logging.INFO):
        loader = ModuleLoader()
        assert await loaded(loader=loader) == published
        await loader.load("tool-todo")

    (line,) = logged(caplog)
    assert "entry point tool-todo of amplifier_module_tool_todo 1.2 is used" in line
    assert "not entry point tool-todo of amplifier " in line
    assert not ModuleLoader().locate("tool-todo").is_built_in


async def test_built_in_module_is_used_silently(site, caplog):
    with caplog.at_level(logging.INFO):
        assert await loaded() == OURS
    assert logged(caplog) == []
    assert ModuleLoader().locate("tool-todo").is_built_in


async def test_plan_pins_built_in_over_installed(site):
    distribution(site, "acme", {"tool-todo": "acme:mount"})
    tool = "type('Tool', (), {'name': 'todo', 'description': 'theirs', 'execute': None})()"
    package(
        site,
        "acme",
        f"async def mount(coordinator, config):\n    await coordinator.mount('tools', {tool})\n",
    )

    async def described(entry):
        plan = {
            "session": {"orchestrator": "loop-basic", "context": "context-simple"},
            "tools": [entry],
        }
        async with AmplifierSession(plan) as session:
            return session.coordinator.get("tools")["todo"].description

    assert await described("tool-todo") == "theirs"
    assert await described({"module": "tool-todo", "source": {"distribution": "acme"}}) == "theirs"
    assert await described({"module": "tool-todo", "source": "builtin"}) != "theirs"


# ── pins ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["amplifier_module_tool_todo", "Amplifier-Module.Tool_Todo"])
async def test_source_pins_distribution_by_name(published, name):
    assert await loaded({"distribution": name}) == published


@pytest.mark.parametrize("source", ["builtin", {"distribution": "amplifier"}])
async def test_source_pins_built_in_module(published, source, caplog):
    with caplog.at_level(logging.INFO):
        assert await loaded(source) == OURS
    assert logged(caplog) == []
    assert published not in sys.modules


async def test_pin_bypasses_resolver(published):
    class Resolver:
        def resolve(self, module_id, source_hint=None):
            raise AssertionError(f"asked about {module_id}")

    loader = ModuleLoader(Coordinator(Resolver()))
    assert await loaded("builtin", loader) == OURS
    assert await loaded({"distribution": published}, loader) == published


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            {"distribution": "absent"},
            "'absent', which does not provide it; it is not installed or provides no modules",
        ),
        ({"distribution": "other"}, "it provides tool-other"),
        ({"distribution": "absent"}, 'provided by {"distribution": "amplifier_module_tool_todo"}'),
        ({"distribution": "absent"}, '"builtin" (entry point tool-todo of amplifier'),
    ],
)
async def test_unmatched_pin_lists_alternatives(published, site, source, words):
    distribution(site, "other", {"tool-other": "other:mount"})
    with pytest.raises(ModuleLoadError) as caught:
        await loaded(source)
    assert words in str(caught.value)
    assert caught.value.reason_code == "missing_source"


@pytest.mark.parametrize(
    "source",
    [
        None,
        "",
        "./builtin",
        "a/path",
        5,
        {},
        {"distribution": ""},
        {"distribution": "x", "git": "y"},
        ["builtin"],
    ],
)
def test_other_sources_are_not_pins(source):
    assert not is_pin(source)


# ── two others ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def contested(site):
    distribution(site, "acme", {"tool-todo": "acme:mount", "tool-acme": "acme:mount"})
    distribution(site, "evil", {"tool-todo": "evil:mount"}, version="6.6")
    for name in ("acme", "evil"):
        package(site, name)


async def test_contested_id_fails_only_when_used(contested):
    loader = ModuleLoader()
    assert (await loader.load("tool-acme")).module_id == "tool-acme"
    ids = [info.id for info in await loader.discover()]
    assert ids.count("tool-todo") == 2
    with pytest.raises(ModuleConflictError) as caught:
        await loader.load("tool-todo")
    for words in (
        "acme 1.0",
        "evil 6.6",
        '"source": {"distribution": "acme"}',
        '"source": "builtin"',
    ):
        assert words in str(caught.value)


async def test_session_continues_without_contested_tool(contested):
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "tools": ["tool-todo", "tool-filesystem"],
    }
    async with AmplifierSession(plan) as session:
        assert [failure.module_id for failure in session.failures] == ["tool-todo"]
        assert "read_file" in session.coordinator.get("tools")


async def test_broken_module_has_no_built_in_fallback(site):
    distribution(site, "acme", {"tool-todo": "acme:mount"})
    package(site, "acme", "import no_such_library\n")
    with pytest.raises(ModuleLoadError, match="no_such_library"):
        await loaded()


# ── what is listed ───────────────────────────────────────────────────────────────────────────────


def entries(module_id, loader=None):
    found = [
        entry for entry in (loader or ModuleLoader()).catalogue() if entry.info.id == module_id
    ]
    return [(entry.origin, entry.source, entry.is_used, entry.info.description) for entry in found]


async def test_catalogue_shows_used_module_and_descriptions(published):
    theirs, ours = entries("tool-todo")
    assert theirs == (
        "amplifier_module_tool_todo 1.2",
        {"distribution": "amplifier_module_tool_todo"},
        True,
        "About amplifier_module_tool_todo",
    )
    assert ours[:3] == ("built in", "builtin", False)
    assert ours[3] != theirs[3]
    assert [info.version for info in await ModuleLoader().discover() if info.id == "tool-todo"] == [
        "1.2"
    ]


async def test_contested_ids_are_not_used(contested):
    assert [(origin, is_used) for origin, _, is_used, _ in entries("tool-todo")] == [
        ("acme 1.0", False),
        ("evil 6.6", False),
        ("built in", False),
    ]


async def test_in_process_registration_comes_first(published, tmp_path):
    root(tmp_path, "tool-todo")
    loader = ModuleLoader(
        search_paths=[tmp_path], modules={"tool-todo": lambda coordinator, config: None}
    )
    assert [
        (origin.partition(" ")[0], is_used)
        for origin, _, is_used, _ in entries("tool-todo", loader)
    ] == [
        ("registered", True),
        ("amplifier_module_tool_todo", False),
        ("path", False),
        ("built", False),
    ]


def test_description_without_summary_is_module_docstring(site):
    write(
        site / "acme-1.dist-info" / "entry_points.txt",
        "[amplifier.modules]\ntool-acme = acme:mount\n",
    )
    package(site, "acme", '"""tool-acme: does what Acme does."""\n')
    ((_, _, _, description),) = entries("tool-acme")
    assert description == "does what Acme does"


def test_built_in_descriptions_are_distinct():
    found = [
        entry.info.description for entry in ModuleLoader().catalogue() if entry.source == "builtin"
    ]
    assert len(found) >= 20
    assert len(set(found)) == len(found)


def test_only_this_package_declares_built_in_modules(site):
    write(
        site / "evil-1.dist-info" / "entry_points.txt",
        "[amplifier.builtin_modules]\ntool-evil = evil:mount\n",
    )
    assert entries("tool-evil") == []


def test_published_entry_points_exclude_own_modules():
    from importlib.metadata import entry_points

    ours = [
        entry
        for entry in entry_points(group="amplifier.modules")
        if entry.value.startswith("amplifier.")
    ]
    assert ours == []


def test_every_built_in_module_is_declared():
    from pathlib import Path

    import amplifier.modules

    folder = Path(amplifier.modules.__file__).parent
    prefixes = {
        "loop": "loop",
        "context": "context",
        "providers": "provider",
        "tools": "tool",
        "hooks": "hooks",
    }
    names = {
        f"{prefix}-{path.stem.replace('_', '-')}"
        for kind, prefix in prefixes.items()
        for path in (folder / kind).iterdir()
        if not path.name.startswith("_")
    }
    declared = {entry.info.id for entry in ModuleLoader().catalogue() if entry.source == "builtin"}
    assert declared == names


async def test_child_session_uses_modules_of_parent(published):
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-own"},
        "tools": ["tool-todo"],
    }

    async def mount(coordinator, config):
        await coordinator.mount("context", MockContextManager())

    parent = AmplifierSession(plan, loader=ModuleLoader(modules={"context-own": mount}))
    async with parent, parent.fork() as child:
        assert child.failures == parent.failures == []
