from __future__ import annotations

import importlib
import importlib.metadata
import pickle
import sys
import textwrap
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import amplifier
from amplifier import compat
from amplifier.errors import ModelError, ModuleConflictError
from amplifier.loading import ModuleLoader
from amplifier.models import HookResult, Message, Usage
from tests._support.programs import run_program

from .published_agent import write_package

MIRROR = Path(amplifier.__file__).parent / "compat" / "amplifier_core"


def python(program: str, *arguments: str) -> CompletedProcess[str]:
    return run_program([sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments])


def compat_command(*arguments: str, folder: Path | None = None) -> CompletedProcess[str]:
    return run_program([sys.executable, "-m", "amplifier.compat", *arguments], cwd=folder)


# ── install and uninstall ──


@pytest.mark.usefixtures("alias")
def test_alias_classes_are_own_classes():
    core = importlib.import_module("amplifier_core")
    assert core.HookResult is HookResult
    assert core.__version__ == "2.0.2"
    assert Path(core.__file__) == MIRROR / "__init__.py"


def test_uninstalled_models_have_no_pydantic_methods():
    assert not compat.is_installed()
    members = ["model_dump", "model_copy", "model_validate", "model_fields"]
    assert [name for name in members if hasattr(Usage, name)] == []
    assert not hasattr(Message(role="user", content="x", tool_calls=[]), "tool_calls")
    with pytest.raises(AttributeError):
        Message(role="user", content="x").tool_calls = []


def test_uninstalling_restores_every_class():
    def members() -> dict[str, dict[str, object]]:
        classes = [HookResult, Message, Usage, *Message.__mro__, *HookResult.__mro__]
        return {cls.__name__: dict(vars(cls)) for cls in classes}

    (
        Message(role="user", content="x"),
        Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        HookResult(),
    )
    before, text = members(), repr(HookResult(reason="r"))
    compat.install()
    assert members() != before
    assert hasattr(Usage, "model_dump")
    compat.uninstall()
    assert members() == before
    with pytest.raises(ModelError):
        Message(role="nobody", content="x")
    assert repr(HookResult(reason="r")) == text
    assert "amplifier_core" not in sys.modules


def test_installing_twice_changes_nothing():
    compat.install()
    compat.install()
    compat.uninstall()
    assert not compat.is_installed()
    assert not hasattr(Usage, "model_dump")
    compat.uninstall()


def test_unimportable_mirror_leaves_nothing_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "amplifier.events", None)
    with pytest.raises(ModuleNotFoundError, match=r"amplifier\.events"):
        compat.install()
    assert not compat.is_installed()
    assert not hasattr(Usage, "model_dump")
    assert "amplifier_core" not in sys.modules


def test_installing_again_imports_new_modules():
    compat.install()
    first = importlib.import_module("amplifier_core.models")
    compat.uninstall()
    compat.install()
    second = importlib.import_module("amplifier_core.models")
    compat.uninstall()
    assert first is not second
    assert first.HookResult is second.HookResult


def test_imported_published_package_is_not_replaced(monkeypatch, tmp_path):
    (tmp_path / "amplifier_core.py").write_text("who = 'published'")
    monkeypatch.syspath_prepend(tmp_path)
    published = importlib.import_module("amplifier_core")
    try:
        with pytest.raises(
            ModuleConflictError,
            match=r"already imported from .*amplifier_core\.py.*-p amplifier\.compat\.pytest",
        ):
            compat.install()
        assert not compat.is_installed()
        assert not hasattr(Usage, "model_dump")
        assert sys.modules["amplifier_core"] is published
    finally:
        del sys.modules["amplifier_core"]


def test_unimported_published_package_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "amplifier_core").mkdir()
    (tmp_path / "amplifier_core" / "__init__.py").write_text("who = 'published'")
    (tmp_path / "amplifier_core" / "models.py").write_text("who = 'published'")
    monkeypatch.syspath_prepend(tmp_path)
    compat.install()
    try:
        assert not hasattr(importlib.import_module("amplifier_core"), "who")
        assert importlib.import_module("amplifier_core.models").HookResult is HookResult
    finally:
        compat.uninstall()


@pytest.mark.usefixtures("alias")
def test_submodules_are_real_and_patchable(monkeypatch):
    import amplifier_core.models

    monkeypatch.setattr("amplifier_core.models.HookResult", "patched")
    from amplifier_core.models import HookResult as seen

    assert seen == "patched"
    assert sys.modules["amplifier_core.models"] is amplifier_core.models
    assert amplifier_core.models.__spec__.name == "amplifier_core.models"


@pytest.mark.usefixtures("alias")
def test_mirror_definitions_can_be_pickled():
    from amplifier_core.module_sources import FileSystemModuleSource

    copied = pickle.loads(pickle.dumps(FileSystemModuleSource(["a"])))
    assert copied.get_module_paths() == ["a"]


# ── distribution metadata ──


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("name", ["amplifier-core", "amplifier_core", "Amplifier.Core"])
def test_distribution_is_found_by_any_spelling(name):
    assert importlib.metadata.version(name) == "2.0.2"
    assert importlib.metadata.metadata(name)["Name"] == "amplifier-core"
    assert importlib.metadata.requires(name) is None


@pytest.mark.usefixtures("alias")
def test_distribution_is_listed_with_pytest_plugin():
    names = [distribution.metadata["Name"] for distribution in importlib.metadata.distributions()]
    assert names.count("amplifier-core") == 1
    plugins = {
        entry.name: entry.value for entry in importlib.metadata.entry_points(group="pytest11")
    }
    assert plugins["amplifier_module"] == "amplifier_core.pytest_plugin"
    assert "amplifier-core" in importlib.metadata.packages_distributions()["amplifier_core"]


@pytest.mark.usefixtures("alias")
def test_other_distribution_queries_are_passed_on(tmp_path):
    assert list(importlib.metadata.distributions(path=[str(tmp_path)])) == []
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("amplifier-core-of-somebody-else")


def test_distribution_is_absent_without_installing():
    program = """
        import amplifier, importlib.metadata
        from importlib.metadata import MetadataPathFinder
        import sys
        print([type(finder).__name__ for finder in sys.meta_path if "amplifier" in type(finder).__module__])
    """
    assert python(program).stdout == "[]\n"


# ── installed by the loader ──


LOAD = """
    import sys, anyio
    from amplifier.loading import ModuleLoader
    from amplifier import compat

    async def main():
        loader = ModuleLoader(search_paths=[sys.argv[1]])
        loaded = await loader.load("tool-old")
        print(compat.is_installed(), loaded.mount.__module__)
        import amplifier_module_tool_old as module
        print(module.check())
        print(compat.is_installed())

    anyio.run(main)
"""


IMPORTS_AT_THE_TOP = """
    from amplifier_core import ModuleCoordinator, ToolResult
    async def mount(coordinator: ModuleCoordinator, config=None): ...
    def check():
        return ToolResult(output=1).model_dump()
"""
IMPORTS_LATER = """
    async def mount(coordinator, config=None): ...
    def check():
        from amplifier_core.models import HookResult
        return HookResult().action
"""
IMPORTS_NOTHING = """
    async def mount(coordinator, config=None): ...
    def check():
        return "nothing"
"""


@pytest.mark.parametrize(
    ("body", "is_installed", "answer", "is_installed_later"),
    [
        (IMPORTS_AT_THE_TOP, "True", "{'success': True, 'output': 1, 'error': None}", "True"),
        (IMPORTS_LATER, "False", "continue", "True"),
        (IMPORTS_NOTHING, "False", "nothing", "False"),
    ],
)
def test_loader_installs_when_module_imports_alias(
    tmp_path, body, is_installed, answer, is_installed_later
):
    write_package(tmp_path, "tool-old", textwrap.dedent(body))
    ended = python(LOAD, str(tmp_path))
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        f"{is_installed} amplifier_module_tool_old",
        answer,
        is_installed_later,
    ]


USES_THE_NAME = """
    import amplifier_core

    async def mount(coordinator, config=None):
        return None

    def check():
        return hasattr(amplifier_core, "who")
"""


def test_loader_passes_over_unimported_published_package(tmp_path):
    (tmp_path / "amplifier_core.py").write_text("who = 'published'")
    write_package(tmp_path, "tool-old", textwrap.dedent(USES_THE_NAME))
    program = "    import sys; sys.path.insert(0, sys.argv[1])\n" + LOAD
    ended = python(program, str(tmp_path))
    assert ended.stdout.splitlines() == ["True amplifier_module_tool_old", "False", "True"]


def test_loader_refuses_alias_beside_imported_package(tmp_path, monkeypatch):
    (tmp_path / "amplifier_core.py").write_text("who = 'published'")
    write_package(tmp_path, "tool-old", textwrap.dedent(USES_THE_NAME))
    program = "    import sys; sys.path.insert(0, sys.argv[1]); import amplifier_core\n" + LOAD
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    ended = python(program, str(tmp_path))
    assert "ModuleConflictError: 'amplifier_core' is already imported from" in ended.stderr
    assert "start the program with `python -m amplifier.compat PROGRAM`" in ended.stderr
    monkeypatch.setenv("PYTEST_VERSION", pytest.__version__)
    assert "run pytest with `-p amplifier.compat.pytest`" in python(program, str(tmp_path)).stderr


def test_native_program_keeps_published_package(tmp_path):
    (tmp_path / "amplifier_core.py").write_text("who = 'published'")
    program = """
        import sys; sys.path.insert(0, sys.argv[1])
        from amplifier.loading import ModuleLoader
        ModuleLoader().find("tool-filesystem")
        import amplifier_core
        print(amplifier_core.who)
    """
    assert python(program, str(tmp_path)).stdout == "published\n"


def test_uninstalling_ends_readiness_to_install():
    assert ModuleLoader.import_hook is not None
    before = list(sys.meta_path)
    ModuleLoader.import_hook("amplifier_module_of_somebody")
    assert importlib.import_module("amplifier_core").HookResult is HookResult
    compat.uninstall()
    assert [finder for finder in sys.meta_path if finder not in before] == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("amplifier_core")


# ── the command ──


@pytest.mark.slow
def test_command_runs_every_kind_of_program(tmp_path):
    program = (
        "import sys, amplifier_core; print(amplifier_core.RUST_AVAILABLE, *sys.argv[1:], __name__)"
    )
    (tmp_path / "program.py").write_text(program)
    expected = "True a b __main__\n"
    assert compat_command("-c", program, "a", "b", folder=tmp_path).stdout == expected
    assert compat_command("-m", "program", "a", "b", folder=tmp_path).stdout == expected
    assert compat_command("program.py", "a", "b", folder=tmp_path).stdout == expected
    ended = compat_command("pytest", "--version", folder=tmp_path)
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "pytest")


def test_command_passes_on_exit_status(tmp_path):
    assert compat_command("-c", "raise SystemExit(7)").returncode == 7
    ended = compat_command("-c", "1 / 0")
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-c"], ["no-such-command-anywhere"]])
def test_command_without_program_prints_usage(arguments):
    ended = compat_command(*arguments)
    assert ended.returncode == 2
    assert "usage: python -m amplifier.compat" in ended.stderr


# ── the pytest plugin ──

SUITE = """
    from amplifier_core import HookResult
    from importlib.metadata import version

    def test_alias(pytestconfig):
        import amplifier
        assert HookResult is amplifier.HookResult
        assert version("amplifier-core") == "2.0.2"
        plugin = pytestconfig.pluginmanager.get_plugin("amplifier_module")
        assert plugin.__name__ == "amplifier_core.pytest_plugin"
        assert "compat" in plugin.__file__
"""


def run_suite(folder: Path, *words: str) -> CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(SUITE))
    return run_program(
        [sys.executable, "-m", *words, "-q", "-p", "no:cacheprovider", "test_it.py"], cwd=folder
    )


@pytest.mark.slow
def test_suite_runs_with_alias_by_option(tmp_path):
    ended = run_suite(tmp_path, "pytest", "-p", "amplifier.compat.pytest")
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


def published_wheel(folder: Path) -> Path:
    """What the published kernel puts into an environment, as far as pytest sees it."""
    (folder / "amplifier_core").mkdir(parents=True)
    (folder / "amplifier_core" / "__init__.py").write_text("")
    (folder / "amplifier_core" / "pytest_plugin.py").write_text("")
    info = folder / "amplifier_core-2.0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amplifier-core\nVersion: 2.0.2\n")
    (info / "entry_points.txt").write_text(
        "[pytest11]\namplifier_module = amplifier_core.pytest_plugin\n"
    )
    (info / "RECORD").write_text(
        "amplifier_core/__init__.py,,\namplifier_core/pytest_plugin.py,,\n"
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("pytest", "-p", "amplifier.compat.pytest"), ("amplifier.compat", "pytest")]
)
def test_suite_runs_with_alias_beside_wheel(tmp_path, monkeypatch, words):
    monkeypatch.setenv("PYTHONPATH", str(published_wheel(tmp_path / "installed")))
    ended = run_suite(tmp_path, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_plugin_import_installs_nothing():
    ended = python(
        "import amplifier.compat.pytest, amplifier.compat; print(amplifier.compat.is_installed())"
    )
    assert ended.stdout == "False\n"
