"""`amplifier module` and `amplifier plan show`: what is installed, and what a run would be made of."""

from __future__ import annotations

import json

import pytest

from amplifier.cli.commands import module as _module
from amplifier.plan import check_plan
from tests.loading._forge import distribution, package


def test_modules_are_listed_by_kind(cli):
    rows = [line.split("\t") for line in cli("module", "list").out.splitlines()]
    by_id = {row[0]: row for row in rows}
    assert by_id["loop-basic"][1] == "orchestrator"
    assert by_id["tool-search"][3].startswith("find text in files")
    kinds = [row[1] for row in rows]
    assert kinds == sorted(
        kinds, key=["orchestrator", "context", "provider", "tool", "hook", "resolver"].index
    )


def test_list_of_kind_as_json(cli):
    shown = json.loads(cli("module", "list", "--type", "context", "--json").out)
    assert {"context-simple", "context-persistent"} <= {info["id"] for info in shown}
    assert {info["type"] for info in shown} == {"context"}
    assert len({info["description"] for info in shown}) == len(
        shown
    )  # each its own, not its distribution's


def test_module_is_shown_with_origin(cli):
    shown = json.loads(cli("module", "show", "tool-search", "--json").out)
    assert shown["loads"] is True
    assert shown["origin"].startswith("entry point tool-search of amplifier")
    assert shown["about"].startswith("tool-search: find text in files")
    assert "mount point    tools" in cli("module", "show", "tool-search").out


def test_unknown_kind_error_lists_kinds(cli):
    printed = cli("module", "list", "--type", "tols", code=2)
    assert printed.out == ""
    assert (
        "--type is 'tols'; expected one of orchestrator, context, provider, tool, hook, resolver"
        in printed.err
    )


def test_missing_package_shows_install_command(monkeypatch, cli):
    monkeypatch.setattr(_module, "missing_package", lambda module_id: ("anthropic", "anthropic"))
    assert (
        "missing        anthropic: pip install 'amplifier[anthropic]'\n"
        in cli("module", "show", "provider-anthropic").out
    )
    assert json.loads(cli("module", "show", "provider-anthropic", "--json").out)["missing"] == {
        "package": "anthropic",
        "extra": "anthropic",
    }


def test_unimportable_module_is_shown(plant, cli):
    plant("tool-broken", "import no_such_library\n")
    shown = json.loads(cli("module", "show", "tool-broken", "--json").out)
    assert shown["loads"] is False
    assert "no_such_library" in shown["problem"]


def test_asyncio_only_module_shows_trio_behaviour(plant, cli):
    plant(
        "tool-metronome",
        '__amplifier_backends__ = ("asyncio",)\n\nasync def mount(coordinator, config): ...\n',
    )
    (line,) = [line for line in cli("module", "list").out.splitlines() if "tool-metronome" in line]
    assert "needs asyncio; on trio it runs on an asyncio island" in line
    assert (
        "backends       needs asyncio; on trio it runs on an asyncio island"
        in cli("module", "show", "tool-metronome").out
    )
    assert "backends" not in cli("module", "show", "tool-todo").out


def test_default_plan_is_shown_and_usable(tmp_path, cli):
    shown = cli("plan", "show", "-m", "openai:big").out
    plan = json.loads(shown)
    assert check_plan(plan)[0] == []
    assert plan["session"]["orchestrator"]["config"]["model"] == "big"
    file = tmp_path / "plan.json"
    file.write_text(shown)
    cli("plan", "check", str(file))


def test_plan_is_shown_without_secrets(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("MY_KEY", "sk-very-secret-value-0123456789")
    file = tmp_path / "plan.json"
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-x", "config": {"api_key": "${MY_KEY}"}}],
    }
    file.write_text(json.dumps(plan))
    shown = cli("plan", "show", str(file)).out
    assert "very-secret" not in shown
    assert json.loads(shown)["providers"][0]["module"] == "provider-x"


# ── two modules with one id ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A published tool-todo beside ours."""
    distribution(
        tmp_path,
        "amplifier_module_tool_todo",
        {"tool-todo": "amplifier_module_tool_todo:mount"},
        "1.2",
    )
    package(tmp_path, "amplifier_module_tool_todo")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_listing_shows_module_in_use(published, cli):
    rows = [
        line.split("\t")
        for line in cli("module", "list", "--type", "tool").out.splitlines()
        if line.startswith("tool-todo\t")
    ]
    assert [(row[2], row[4]) for row in rows] == [
        ("1.2", "amplifier_module_tool_todo 1.2"),
        (rows[1][2], 'built in (not used; source: "builtin")'),
    ]
    assert rows[0][3] == "About amplifier_module_tool_todo" != rows[1][3]

    shown = [
        each
        for each in json.loads(cli("module", "list", "--json").out)
        if each["id"] == "tool-todo"
    ]
    assert [(each["in_use"], each["source"]) for each in shown] == [
        (True, {"distribution": "amplifier_module_tool_todo"}),
        (False, "builtin"),
    ]


def test_module_shows_overridden_ones(published, cli):
    shown = cli("module", "show", "tool-todo").out
    assert "from           amplifier_module_tool_todo 1.2\n" in shown
    assert 'others         built in (not used; source: "builtin")\n' in shown


def test_validate_checks_module_in_use(published, capsys):
    from amplifier.conformance.target.locate import find_target

    assert find_target("tool-todo").import_name == "amplifier_module_tool_todo"


def test_contested_id_is_listed(published, cli):
    distribution(published, "evil", {"tool-todo": "evil:mount"}, "6.6")
    rows = [
        line.split("\t")
        for line in cli("module", "list", "--type", "tool").out.splitlines()
        if line.startswith("tool-todo\t")
    ]
    assert sorted(row[4].partition(" (")[2].partition(";")[0] for row in rows) == [
        "contested",
        "contested",
        "not used",
    ]
