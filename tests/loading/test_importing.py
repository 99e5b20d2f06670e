from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from amplifier.errors import ModuleConflictError, ModuleLoadError
from amplifier.loading.importing import find_installed, installed_module, package_from
from tests.loading._forge import package, root, write


def import_from(directory: Path, module_id="tool-x", beside: Path | None = None):
    with package_from(directory, directory.name, module_id, beside or directory) as module:
        return module


def import_by_name(name, module_id="tool-x"):
    with installed_module(name, module_id, "somewhere") as module:
        return module


# ── from a directory ─────────────────────────────────────────────────────────────────────────────


def test_package_is_imported_under_own_name(tmp_path):
    directory = package(
        tmp_path,
        "amplifier_module_tool_x",
        "from amplifier_module_tool_x.part import value\nfrom .other import value as second\n",
        part="value = 1\n",
        other="value = 2\n",
    )
    before = list(sys.path), list(sys.meta_path)
    module = import_from(directory)
    assert (module.value, module.second, module.__name__) == (1, 2, "amplifier_module_tool_x")
    assert sys.modules["amplifier_module_tool_x"] is module
    assert (list(sys.path), list(sys.meta_path)) == before


def test_package_behind_symbolic_links(tmp_path):
    package(tmp_path / "store", "thing", part="value = 1\n")
    (tmp_path / "checkout").mkdir()
    link = tmp_path / "checkout" / "thing"
    link.symlink_to(tmp_path / "store" / "thing")
    module = import_from(link)
    assert importlib.import_module("thing.part").value == 1
    del sys.modules["thing"]
    assert import_from(link) is not module


def test_name_imported_from_elsewhere_is_refused(tmp_path):
    first = package(tmp_path / "a", "amplifier_module_tool_x")
    second = package(tmp_path / "b", "amplifier_module_tool_x")
    module = import_from(first)
    with pytest.raises(ModuleConflictError, match="already imported") as caught:
        import_from(second)
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    assert caught.value.reason_code == "conflict"
    assert sys.modules["amplifier_module_tool_x"] is module


def test_submodule_from_elsewhere_is_refused(tmp_path, monkeypatch):
    elsewhere = package(tmp_path / "a", "amplifier_module_tool_x", part="")
    import_from(elsewhere)
    importlib.import_module("amplifier_module_tool_x.part")
    del sys.modules["amplifier_module_tool_x"]
    with pytest.raises(
        ModuleConflictError, match=r"'amplifier_module_tool_x\.part' is already imported"
    ):
        import_from(package(tmp_path / "b", "amplifier_module_tool_x"))


def test_standard_library_name_is_refused(tmp_path):
    import colorsys

    directory = package(tmp_path, "colorsys")
    with pytest.raises(ModuleConflictError, match="belongs to the standard library") as caught:
        import_from(directory)
    assert str(directory) in str(caught.value)
    assert str(colorsys.__file__) in str(caught.value)
    assert sys.modules["colorsys"] is colorsys


def test_builtin_module_name_is_refused(tmp_path):
    with pytest.raises(ModuleConflictError, match=r"from the interpreter \(built in\)"):
        import_from(package(tmp_path, "sys"))


def test_installed_package_name_is_refused(tmp_path, site):
    installed = package(site, "popular")
    with pytest.raises(ModuleConflictError, match="'popular' is installed") as caught:
        import_from(package(tmp_path / "checkout", "popular"))
    assert str(installed) in str(caught.value)
    assert "popular" not in sys.modules


def test_checkout_replaces_unimported_installed_module(tmp_path, site):
    package(site, "amplifier_module_tool_x", "where = 'installed'\n")
    assert (
        import_from(
            package(tmp_path / "checkout", "amplifier_module_tool_x", "where = 'checkout'\n")
        ).where
        == "checkout"
    )


def test_threads_wait_for_package_being_imported(tmp_path):
    directory = package(
        tmp_path,
        "amplifier_module_tool_x",
        "import threading\nimport tests.loading.test_importing as test\ntest.meet()\ncomplete = True\n",
    )
    seen = []

    def look():
        half_way.wait(60)
        going_on.set()
        seen.append(hasattr(importlib.import_module("amplifier_module_tool_x"), "complete"))

    thread = threading.Thread(target=look)
    thread.start()
    import_from(directory)
    thread.join()
    assert seen == [True]


half_way = threading.Event()
going_on = threading.Event()


def meet():
    half_way.set()
    assert going_on.wait(60)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────

FAILING = {
    "an error": ("raise RuntimeError('broken')", RuntimeError),
    "a syntax error": ("def (:", SyntaxError),
    "a missing dependency": ("import surely_not_installed", ModuleNotFoundError),
    "sys.exit": ("import sys\nsys.exit(3)", SystemExit),
    "endless recursion": ("def f(): f()\nf()", RecursionError),
    "an exotic exception": ("class Odd(BaseException): pass\nraise Odd", BaseException),
    "a generator's exit": ("raise GeneratorExit", GeneratorExit),
    # Synchronous code cannot be cancelled in earnest: whatever class it raises, it made it.
    "a cancellation": ("import asyncio\nraise asyncio.CancelledError", asyncio.CancelledError),
}


@pytest.mark.parametrize(("body", "cause"), FAILING.values(), ids=FAILING)
async def test_import_failure_belongs_to_module(tmp_path, body, cause):
    directory = package(
        tmp_path, "amplifier_module_tool_x", f"from . import part\n{body}\n", part=""
    )
    before = set(sys.modules), list(sys.meta_path)
    with pytest.raises(ModuleLoadError, match="importing 'amplifier_module_tool_x' from") as caught:
        import_from(directory)
    assert isinstance(caught.value.__cause__, cause)
    assert caught.value.module_id == "tool-x"
    assert (set(sys.modules) - before[0], list(sys.meta_path)) == (set(), before[1])


async def test_keyboard_interrupt_at_import_propagates(tmp_path):
    directory = package(
        tmp_path,
        "amplifier_module_tool_x",
        "from . import part\nraise KeyboardInterrupt\n",
        part="",
    )
    with pytest.raises(KeyboardInterrupt):
        import_from(directory)
    assert not [name for name in sys.modules if name.startswith("amplifier_module_tool_x")]


def test_missing_dependency_is_named(tmp_path):
    with pytest.raises(
        ModuleLoadError, match="it needs 'surely_not_installed', which cannot be found"
    ):
        import_from(package(tmp_path, "amplifier_module_tool_x", "import surely_not_installed\n"))


def test_failed_import_can_be_repeated(tmp_path):
    directory = package(
        tmp_path,
        "amplifier_module_tool_x",
        "from .part import value\nraise RuntimeError\n",
        part="value = 1\n",
    )
    with pytest.raises(ModuleLoadError):
        import_from(directory)
    write(directory / "__init__.py", "from .part import value  # repaired\n")
    write(directory / "part.py", "value = 'after the repair'\n")
    assert import_from(directory).value == "after the repair"


def test_rejected_package_leaves_sys_modules(tmp_path):
    directory = package(tmp_path, "amplifier_module_tool_x")
    with (
        pytest.raises(LookupError),
        package_from(directory, "amplifier_module_tool_x", "tool-x", directory),
    ):
        raise LookupError
    assert "amplifier_module_tool_x" not in sys.modules


def test_failed_import_forgets_neighbours(tmp_path, monkeypatch):
    checkout = root(
        tmp_path, "tool-x", "import neighbour_of_x\nraise RuntimeError\n", neighbour_of_x=""
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(checkout)])
    with pytest.raises(ModuleLoadError):
        import_from(checkout / "amplifier_module_tool_x", beside=checkout)
    assert "neighbour_of_x" not in sys.modules


def test_failed_import_keeps_earlier_submodules(site):
    package(site, "hostapp", "", util="", plugin="import hostapp.util\nraise RuntimeError\n")
    importlib.import_module("hostapp")
    with pytest.raises(ModuleLoadError):
        import_by_name("hostapp.plugin")
    assert "hostapp.plugin" not in sys.modules
    assert "hostapp.util" in sys.modules


# ── by name ──────────────────────────────────────────────────────────────────────────────────────


def test_named_source_keeps_installed_package(site, tmp_path):
    installed = package(site, "amplifier_module_tool_x", "where = 'installed'\n")
    checkout = package(tmp_path / "checkout", "amplifier_module_tool_x")
    import_from(checkout)
    with pytest.raises(ModuleConflictError, match="already imported") as caught:
        import_by_name("amplifier_module_tool_x")
    assert str(installed) in str(caught.value)
    assert str(checkout) in str(caught.value)


def test_named_source_keeps_absent_package_absent(tmp_path):
    import_from(package(tmp_path, "amplifier_module_tool_x"))
    with pytest.raises(ModuleConflictError, match="already imported"):
        import_by_name("amplifier_module_tool_x")


def test_held_root_hides_no_later_entries(tmp_path, monkeypatch, held):
    checkout = root(tmp_path, "tool-x")
    installed = package(tmp_path / "late", "amplifier_module_tool_x")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert held.add(str(checkout), None)
    sys.path.append(str(tmp_path / "late"))
    spec = find_installed("amplifier_module_tool_x")
    assert spec is not None
    assert spec.origin == str(installed / "__init__.py")


def test_foreign_finder_does_not_revive_held_roots(tmp_path, monkeypatch, held):
    class Rewriting:
        def find_spec(self, name, path=None, target=None):
            return PathFinder.find_spec(name, path)

    monkeypatch.setattr(sys, "meta_path", [Rewriting(), *sys.meta_path])
    checkout = root(tmp_path, "tool-x")
    assert held.add(str(checkout), None)
    assert find_installed("amplifier_module_tool_x") is None


def test_finding_imports_nothing(tmp_path, site, held):
    """Held roots and plain directories are ignored."""
    package(site, "acme", "raise SystemExit\n")
    (site / "plain").mkdir()
    checkout = root(tmp_path, "tool-x")
    assert held.add(str(checkout), None)
    assert find_installed("amplifier_module_tool_x") is None
    spec = find_installed("acme")
    assert spec is not None
    assert spec.origin == str(site / "acme" / "__init__.py")
    assert find_installed("plain") is None
    assert find_installed("surely_not_installed") is None
    assert "acme" not in sys.modules
