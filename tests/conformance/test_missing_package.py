"""What a report advises when the module needs a package that is not installed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.harness.check_registry import all_clauses
from amplifier.conformance.target.locate import find_target
from amplifier.conformance.target.missing_package import missing_package_hint
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


def check(target: Path | str) -> Report:
    async def run() -> Report:
        return await check_module(target, only=["A1", "T1"], backends=["asyncio"])

    return anyio.run(run)


def declare(root: Path, *dependencies: str, extra: str = "") -> None:
    file = root / "pyproject.toml"
    listed = f"dependencies = {list(dependencies)!r}\n"
    optional = f"[project.optional-dependencies]\nfancy = [{extra!r}]\n" if extra else ""
    text = file.read_text().replace('version = "1"\n', f'version = "1"\n{listed}{optional}')
    file.write_text(text, encoding="utf-8")


def test_a_folder_names_the_distribution_that_it_declares(tmp_path):
    root = write_project(tmp_path, "import no_such_yaml\n" + SOUND_TOOL.replace("\n    ", "\n"))
    declare(root, "anyio", "No_Such.YAML>=6 ; python_version >= '3'")
    (found,) = check(root).violations
    assert found.what == "it cannot be imported: ModuleNotFoundError: No module named 'no_such_yaml'"
    assert found.location == "__init__.py:1"
    assert found.hint == (
        "Install 'No_Such.YAML' for 'no_such_yaml', which pyproject.toml declares: pip install 'No_Such.YAML>=6'"
    )


@pytest.mark.parametrize(
    ("dependencies", "hint"),
    [
        (["python-no-such-thing"], "Install 'python-no-such-thing' for 'thing', which pyproject.toml declares"),
        (["NoSuchDistribution>1"], "which pyproject.toml declares: pip install 'NoSuchDistribution>1'"),
        (
            ["NoSuchOne", "NoSuchTwo"],
            "pyproject.toml does not declare it. Declared and not installed: NoSuchOne, NoSuchTwo.",
        ),
        (["anyio"], "and add it to the dependencies: pyproject.toml does not declare it."),
        ([], "and add it to the dependencies: pyproject.toml does not declare it."),
    ],
)
def test_a_name_that_differs_is_only_taken_from_a_declaration(tmp_path, dependencies, hint):
    root = write_project(tmp_path, SOUND_TOOL)
    declare(root, *dependencies)
    found = missing_package_hint(find_target(root), "No module named 'thing'")
    assert found is not None
    assert hint in found
    assert "pip install thing" not in found


def test_an_extra_of_the_module_is_named(tmp_path):
    root = write_project(tmp_path, SOUND_TOOL)
    declare(root, "anyio", extra="no-such-thing>=2")
    found = missing_package_hint(find_target(root), "No module named 'no_such_thing.part'")
    assert found == (
        "Install 'no-such-thing' for 'no_such_thing', which pyproject.toml declares in its extra 'fancy': pip install 'x[fancy]'"
    )


def test_a_file_without_a_project_gets_no_invented_name(tmp_path):
    file = write_module(tmp_path, "import no_such_thing\n" + SOUND_TOOL.replace("\n    ", "\n"))
    (found,) = check(file).violations
    assert found.hint.startswith(
        "Install the distribution that provides 'no_such_thing', which may be called differently."
    )
    assert "pip install" not in found.hint


def test_a_file_inside_a_project_uses_its_declaration(tmp_path):
    root = write_project(tmp_path, SOUND_TOOL)
    declare(root, "no-such-thing")
    found = missing_package_hint(find_target(root / "tool_echo" / "__init__.py"), "No module named 'no_such_thing'")
    assert found is not None
    assert found.endswith("pip install no-such-thing")


def test_an_installed_module_uses_the_metadata_of_its_distribution(tmp_path, monkeypatch):
    package = tmp_path / "tool_elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_thing\n", encoding="utf-8")
    info = tmp_path / "tool_elsewhere-1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: tool-elsewhere\nVersion: 1\nRequires-Dist: No-Such-Thing>=3; extra == 'web'\n"
    )
    info.joinpath("top_level.txt").write_text("tool_elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = check("tool_elsewhere").violations
    assert found.hint == (
        "Install 'No-Such-Thing' for 'no_such_thing', which the distribution 'tool-elsewhere' declares in its extra 'web': "
        "pip install 'tool-elsewhere[web]'"
    )


def test_an_import_inside_mount_is_advised_on_as_well(tmp_path):
    source = SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "import no_such_thing")
    root = write_project(tmp_path, source)
    declare(root, "no-such-thing")
    report = check(root)
    assert report.verdict == "unchecked"
    assert any("pip install no-such-thing; not examined" in note for note in report.notes), report.notes


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tool_echo.helpers", "The module's own package has no 'tool_echo.helpers'"),
        ("distutils.core", "'distutils' belongs to the standard library of other versions of Python"),
        ("anyio.nothing", "The installed package 'anyio' has no 'anyio.nothing'"),
    ],
)
def test_what_no_installation_provides_is_explained(tmp_path, name, hint, monkeypatch):
    monkeypatch.setattr("sys.stdlib_module_names", frozenset({"distutils"}))
    found = missing_package_hint(find_target(write_project(tmp_path, SOUND_TOOL)), f"No module named {name!r}")
    assert found is not None
    assert hint in found


def test_other_errors_get_no_advice_on_packages(tmp_path):
    target = find_target(write_project(tmp_path, SOUND_TOOL))
    assert missing_package_hint(target, "RuntimeError: no") is None
    assert missing_package_hint(target, "No module named 'amplifier_core'") is None


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[broken", "There is no pyproject.toml that declares it."),
        ("project = 7", "There is no pyproject.toml that declares it."),
        ("[project]\ndependencies = 'thing'\noptional-dependencies = []", "pyproject.toml does not declare it."),
        ("[project]\ndependencies = [7, '']", "pyproject.toml does not declare it."),
    ],
)
def test_a_malformed_project_declares_nothing(tmp_path, text, advice):
    root = write_project(tmp_path, SOUND_TOOL)
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    assert str(missing_package_hint(find_target(root), "No module named 'thing'")).endswith(advice)


def test_an_import_that_fails_otherwise_is_advised_on_as_an_import(tmp_path):
    (found,) = check(write_module(tmp_path, "raise RuntimeError('no')\n", "tool_echo.py")).violations
    assert (
        found.hint
        == "Let importing the module succeed and end at once; leave work that may fail or take long to mount."
    )


def test_an_entry_point_that_leads_nowhere_is_advised_on_as_an_entry_point(tmp_path):
    found = next(each for each in check(write_module(tmp_path, "x = 1\n")).violations if each.check == "import")
    assert found.hint == all_clauses()["A1"].hint
