"""`amplifier module` and `amplifier plan show`: what is installed, and what a run would be made of."""

from __future__ import annotations

import json

import pytest

from amplifier.cli import main
from amplifier.cli.commands import module as _module
from amplifier.plan import check_plan
from tests.loading._forge import distribution, package


def test_modules_are_listed_by_kind_with_a_line_each(capsys):
    assert main(["module", "list"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    by_id = {row[0]: row for row in rows}
    assert by_id["loop-basic"][1] == "orchestrator"
    assert by_id["tool-search"][3].startswith("find text in files")
    kinds = [row[1] for row in rows]
    assert kinds == sorted(kinds, key=["orchestrator", "context", "provider", "tool", "hook", "resolver"].index)


def test_a_kind_can_be_asked_for_and_json(capsys):
    assert main(["module", "list", "--type", "context", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"context-simple", "context-persistent"} <= {info["id"] for info in shown}
    assert {info["type"] for info in shown} == {"context"}
    assert len({info["description"] for info in shown}) == len(shown)  # each its own, not its distribution's


def test_a_module_is_described_alike_wherever_it_is_shown(capsys):
    assert main(["module", "list", "--type", "tool"]) == 0
    listed = {row[0]: row[3] for row in (line.split("\t") for line in capsys.readouterr().out.splitlines())}
    assert main(["module", "show", "tool-search", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["description"] == listed["tool-search"]


def test_a_module_is_shown_with_what_it_is_and_where_it_comes_from(capsys):
    assert main(["module", "show", "tool-search", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["loads"] is True
    assert shown["origin"].startswith("entry point tool-search of amplifier")
    assert shown["about"].startswith("tool-search: find text in files")
    assert main(["module", "show", "tool-search"]) == 0
    assert "mount point    tools" in capsys.readouterr().out


def test_error_for_an_unknown_kind_lists_the_kinds(capsys):
    assert main(["module", "list", "--type", "tols"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--type is 'tols'; expected one of orchestrator, context, provider, tool, hook, resolver" in printed.err


def test_a_missing_package_is_shown_with_the_command_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(_module, "missing_package", lambda module_id: ("anthropic", "anthropic"))
    assert main(["module", "show", "provider-anthropic"]) == 0
    assert "missing        anthropic: pip install 'amplifier[anthropic]'\n" in capsys.readouterr().out
    assert main(["module", "show", "provider-anthropic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == {"package": "anthropic", "extra": "anthropic"}


def test_error_for_an_unknown_module_suggests_the_nearest_one(capsys):
    assert main(["module", "show", "tool-serach"]) == 2
    assert "did you mean 'tool-search'?" in capsys.readouterr().err


def test_a_module_that_cannot_be_imported_is_shown_as_such(tmp_path, monkeypatch, capsys):
    package = tmp_path / "amplifier-module-tool-broken" / "amplifier_module_tool_broken"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import no_such_library\n")
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
    assert main(["module", "show", "tool-broken", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["loads"] is False
    assert "no_such_library" in shown["problem"]


def test_a_module_for_asyncio_only_is_listed_and_shown_with_what_happens_on_trio(tmp_path, monkeypatch, capsys):
    package = tmp_path / "amplifier-module-tool-metronome" / "amplifier_module_tool_metronome"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        '__amplifier_backends__ = ("asyncio",)\n\nasync def mount(coordinator, config): ...\n'
    )
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
    assert main(["module", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "tool-metronome" in line]
    assert "needs asyncio; on trio it runs on an asyncio island" in line
    assert main(["module", "show", "tool-metronome"]) == 0
    assert "backends       needs asyncio; on trio it runs on an asyncio island" in capsys.readouterr().out
    assert main(["module", "show", "tool-todo"]) == 0
    assert "backends" not in capsys.readouterr().out


def test_the_default_plan_can_be_seen_and_used_as_a_file(tmp_path, capsys):
    assert main(["plan", "show", "-m", "big"]) == 0
    shown = capsys.readouterr().out
    plan = json.loads(shown)
    assert check_plan(plan)[0] == []
    assert plan["session"]["orchestrator"]["config"]["model"] == "big"
    file = tmp_path / "plan.json"
    file.write_text(shown)
    assert main(["plan", "check", str(file)]) == 0


def test_a_plan_is_shown_without_its_secrets(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-value-0123456789")
    file = tmp_path / "plan.json"
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-x", "config": {"api_key": "${MY_KEY}"}}],
    }
    file.write_text(json.dumps(plan))
    assert main(["plan", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "very-secret" not in shown
    assert json.loads(shown)["providers"][0]["module"] == "provider-x"


# ── two modules with one id ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A published tool-todo beside ours."""
    distribution(tmp_path, "amplifier_module_tool_todo", {"tool-todo": "amplifier_module_tool_todo:mount"}, "1.2")
    package(tmp_path, "amplifier_module_tool_todo")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_listing_shows_which_module_is_in_use_each_with_its_own_description(published, capsys):
    assert main(["module", "list", "--type", "tool"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("tool-todo\t")]
    assert [(row[2], row[4]) for row in rows] == [
        ("1.2", "amplifier_module_tool_todo 1.2"),
        (rows[1][2], 'built in (not used; source: "builtin")'),
    ]
    assert rows[0][3] == "About amplifier_module_tool_todo" != rows[1][3]

    assert main(["module", "list", "--json"]) == 0
    shown = [each for each in json.loads(capsys.readouterr().out) if each["id"] == "tool-todo"]
    assert [(each["in_use"], each["source"]) for each in shown] == [
        (True, {"distribution": "amplifier_module_tool_todo"}),
        (False, "builtin"),
    ]


def test_a_module_is_shown_with_those_it_takes_precedence_over(published, capsys):
    assert main(["module", "show", "tool-todo"]) == 0
    shown = capsys.readouterr().out
    assert "from           amplifier_module_tool_todo 1.2\n" in shown
    assert 'others         built in (not used; source: "builtin")\n' in shown


def test_validate_checks_the_module_in_use(published, capsys):
    from amplifier.conformance.target.locate import find_target

    assert find_target("tool-todo").import_name == "amplifier_module_tool_todo"


def test_a_contested_id_is_listed_as_such(published, capsys):
    distribution(published, "evil", {"tool-todo": "evil:mount"}, "6.6")
    assert main(["module", "list", "--type", "tool"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("tool-todo\t")]
    assert sorted(row[4].partition(" (")[2].partition(";")[0] for row in rows) == ["contested", "contested", "not used"]
