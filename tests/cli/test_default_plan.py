"""Which modules a run is made of: the default plan, the choice of the provider, and what options change in a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli._exit_codes import CommandError
from amplifier.cli.agent.configuration import Configuration, Value
from amplifier.cli.agent.default_plan import DEFAULT_TOOLS, build_plan, with_storage_paths
from amplifier.loading import loader as _installed_modules
from amplifier.loading.loader import REQUIRED_PACKAGES
from amplifier.plan import check_plan
from tests.loading._forge import distribution

EVERYTHING = {
    "loop-streaming",
    "context-persistent",
    "hooks-logging",
    "hooks-redaction",
    "hooks-approval",
    *DEFAULT_TOOLS,
    *REQUIRED_PACKAGES,
    "provider-offline",
    "provider-mock",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch) -> set[str]:
    """Packages of extras that are installed, to be changed by a test."""
    packages = {package for package, _ in REQUIRED_PACKAGES.values()}
    monkeypatch.setattr(
        _installed_modules, "find_spec", lambda name: name if name in packages else None
    )
    return packages


def modules(plan: dict, section: str) -> list[str]:
    return [entry["module"] for entry in plan[section]]


def test_default_plan_is_valid_and_complete():
    made = build_plan(EVERYTHING, environment={})
    assert check_plan(made.plan) == ([], [])
    assert modules(made.plan, "tools") == list(DEFAULT_TOOLS)
    assert modules(made.plan, "hooks") == ["hooks-redaction", "hooks-approval", "hooks-logging"]
    assert [hook.get("on_failure") for hook in made.plan["hooks"]] == ["deny", "deny", None]


def test_default_plan_pins_essential_modules_only():
    plan = build_plan(EVERYTHING, environment={}).plan
    specs = [*plan["session"].values(), *plan["providers"], *plan["tools"], *plan["hooks"]]
    pinned = {spec["module"] for spec in specs if spec.get("source") == "builtin"}
    assert pinned == {
        *("loop-streaming", "context-persistent", "tool-task"),
        *("hooks-redaction", "hooks-approval", "hooks-logging"),
    }
    assert [spec for spec in specs if "source" in spec and spec["module"] not in pinned] == []


def test_foreign_provider_needs_no_own_package(tmp_path, monkeypatch, installed):
    installed.discard("httpx2")
    assert (
        build_plan(EVERYTHING, environment={"ANTHROPIC_API_KEY": "x"}).provider
        == "provider-offline"
    )
    distribution(
        tmp_path, "amplifier_module_provider_anthropic", {"provider-anthropic": "theirs:mount"}
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        build_plan(EVERYTHING, environment={"ANTHROPIC_API_KEY": "x"}).provider
        == "provider-anthropic"
    )


@pytest.mark.parametrize(
    ("environment", "wanted", "chosen"),
    [
        ({}, None, "provider-offline"),
        ({"ANTHROPIC_API_KEY": ""}, None, "provider-offline"),
        ({"ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "y"}, None, "provider-anthropic"),
        ({"OPENAI_API_KEY": "y"}, None, "provider-openai"),
        ({"ANTHROPIC_API_KEY": "x"}, "openai", "provider-openai"),
        ({"ANTHROPIC_API_KEY": "x"}, "provider-mock", "provider-mock"),
    ],
)
def test_provider_is_requested_or_has_key(environment, wanted, chosen):
    made = build_plan(EVERYTHING, provider=wanted, environment=environment)
    assert (modules(made.plan, "providers"), made.provider, made.notes) == ([chosen], chosen, [])


def test_key_without_package_is_reported(installed):
    installed.discard("httpx2")
    made = build_plan(EVERYTHING, environment={"ANTHROPIC_API_KEY": "very-secret"})
    assert made.provider == "provider-offline"
    (note,) = made.notes
    assert "pip install 'amplifier[anthropic]'" in note
    assert "very-secret" not in note


def test_tool_without_package_is_left_out(installed):
    assert list(build_plan(EVERYTHING, environment={}).plan["agents"]) == ["explorer"]
    installed.discard("truststore")
    made = build_plan(EVERYTHING - {"tool-bash", "tool-task", "hooks-approval"}, environment={})
    assert "agents" not in made.plan
    assert modules(made.plan, "tools") == [
        tool for tool in DEFAULT_TOOLS if tool not in ("tool-web", "tool-bash", "tool-task")
    ]
    assert modules(made.plan, "hooks") == ["hooks-redaction", "hooks-logging"]


def test_unknown_provider_error_lists_installed_ones():
    with pytest.raises(
        CommandError, match="no provider 'tool-bash' is installed; there are: anthropic, mock"
    ):
        build_plan(EVERYTHING, provider="tool-bash", environment={})


def test_model_goes_to_loop():
    made = build_plan(EVERYTHING, model="big", environment={"ANTHROPIC_API_KEY": "x"})
    assert (made.provider, made.model) == ("provider-anthropic", "big")
    config = made.plan["session"]["orchestrator"]["config"]
    assert config["model"] == "big"
    assert "system_prompt" in config


URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("model", "provider", "entry", "asked"),
    [
        (
            "openai:gpt-5",
            None,
            {"module": "provider-openai", "config": {"default_model": "gpt-5"}},
            "gpt-5",
        ),
        (
            "openai:gpt-5",
            "openai",
            {"module": "provider-openai", "config": {"default_model": "gpt-5"}},
            "gpt-5",
        ),
        ("gpt-5", None, {"module": "provider-openai"}, "gpt-5"),
        ("claude-x", "openai", {"module": "provider-openai"}, "claude-x"),
        ("llama3:8b", "openai-compatible", {"module": "provider-openai-compatible"}, "llama3:8b"),
        (
            f"openai-compatible:x@{URL}",
            None,
            {
                "module": "provider-openai-compatible",
                "config": {"default_model": "x", "base_url": URL},
            },
            "x",
        ),
        ("a.gguf", "openai-compatible", {"module": "provider-openai-compatible"}, "a.gguf"),
        ("offline", None, {"module": "provider-offline"}, None),
    ],
)
def test_named_model_is_used(model, provider, entry, asked):
    made = build_plan(
        EVERYTHING | {"provider-openai-compatible"}, model=model, provider=provider, environment={}
    )
    assert made.plan["providers"] == [entry]
    assert made.plan["session"]["orchestrator"]["config"].get("model") == asked
    assert made.model == model


@pytest.mark.parametrize(
    ("model", "provider", "problem"),
    [
        (
            "big",
            None,
            "no provider is there for the model 'big': name it with the model, as in -m openai:big",
        ),
        ("big", "offline", "no provider is there for the model 'big'"),
        ("openai:gpt-5", "anthropic", "-p anthropic and -m openai:gpt-5 name two providers"),
        (
            "antropic:claude-x",
            None,
            "no provider 'antropic' is installed; there are: .*; did you mean 'anthropic'",
        ),
        ("openai", None, "expected a model after 'openai'"),
        (
            "local:a.gguf",
            None,
            "got 'local:a.gguf'; provider-local was removed: serve the model with Ollama or",
        ),
        (
            "a.gguf",
            None,
            "the model 'a.gguf': expected 'openai-compatible:MODEL@URL', got 'a.gguf'; provider-local",
        ),
        (
            "a.gguf",
            "local",
            "no provider 'local' is installed; provider-local was removed: serve the model",
        ),
        ("openai-compatible:x", None, "expected 'openai-compatible:MODEL@URL'"),
    ],
)
def test_named_model_is_refused(model, provider, problem):
    with pytest.raises(CommandError, match=problem):
        build_plan(
            EVERYTHING, model=model, provider=provider, environment={"ANTHROPIC_API_KEY": ""}
        )


# ── a plan of the user's ─────────────────────────────────────────────────────────────────────────


def plan_file(folder: Path, **sections: object) -> Path:
    file = folder / "plan.json"
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}, **sections}
    file.write_text(json.dumps(plan))
    return file


def test_user_plan_is_kept_with_variables(tmp_path):
    file = plan_file(tmp_path, providers=[{"module": "provider-x", "config": {"key": "${KEY}"}}])
    made = build_plan(EVERYTHING, file=file, environment={"KEY": "value"})
    assert made.plan["providers"] == [{"module": "provider-x", "config": {"key": "value"}}]
    assert made.provider == "provider-x"
    assert made.plan["session"] == {"orchestrator": "loop-basic", "context": "context-simple"}


@pytest.mark.parametrize("wanted", ["second", "provider-y", "y"])
def test_requested_provider_goes_first(wanted, tmp_path):
    entries = ["provider-x", {"module": "provider-y", "instance_id": "second"}]
    made = build_plan(
        EVERYTHING, file=plan_file(tmp_path, providers=entries), provider=wanted, environment={}
    )
    assert made.plan["providers"] == [entries[1], entries[0]]
    assert made.provider == "provider-y"


def test_provider_missing_in_plan_is_added(tmp_path):
    file = plan_file(tmp_path, providers=["provider-x"])
    made = build_plan(EVERYTHING, file=file, provider="mock", model="m", environment={})
    assert made.plan["providers"] == [{"module": "provider-mock"}, "provider-x"]
    assert made.plan["session"]["orchestrator"] == {
        "module": "loop-basic",
        "config": {"model": "m"},
    }


@pytest.mark.parametrize("session", [None, [], {"orchestrator": 7}])
def test_invalid_plan_is_not_changed(session, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": session}))
    made = build_plan(EVERYTHING, file=file, model="m", environment={})
    assert made.plan == {"session": session}
    assert with_storage_paths(made.plan, sessions=tmp_path) == made.plan


# ── places ───────────────────────────────────────────────────────────────────────────────────────


def test_conversation_and_events_get_their_paths(tmp_path):
    sessions = tmp_path / "{odd}" / "sessions"
    plan = build_plan(EVERYTHING, environment={}).plan
    placed = with_storage_paths(plan, sessions=sessions)
    assert placed["session"]["context"]["config"] == {"path": str(sessions), "durable_turns": True}
    template = placed["hooks"][2]["config"]["path"]
    assert template.format(session_id="abc") == str(sessions / "abc" / "events.jsonl")
    assert "config" not in plan["hooks"][2]
    assert check_plan(placed) == ([], [])


def test_user_paths_are_kept(tmp_path):
    plan = {
        "session": {
            "orchestrator": "loop-basic",
            "context": {"module": "context-persistent", "config": {"path": "p"}},
        },
        "hooks": [
            {"module": "hooks-logging", "config": {"path": "e"}},
            {"module": "hooks-logging", "config": {"session_log_template": "t"}},
            "hooks-other",
        ],
    }
    assert with_storage_paths(plan, sessions=tmp_path) == plan


@pytest.mark.parametrize("add", [[], ["deploy"]])
def test_own_plan_is_protected(tmp_path, add):
    """An agent that changes the file would choose what the next one starts."""
    file = tmp_path / "plan.json"
    session: dict[str, Any] = {"orchestrator": "loop-basic", "context": "context-simple"}
    session |= {"protected_places": {"add": add}} if add else {}
    file.write_text(json.dumps({"session": session}))
    inside = build_plan([], file=file, environment={}, directory=tmp_path).plan
    assert inside["session"]["protected_places"]["add"] == [*add, str(file)]
    (tmp_path / "work").mkdir()
    outside = build_plan([], file=file, environment={}, directory=tmp_path / "work").plan
    assert outside["session"] == session


def test_file_of_servers_is_protected(tmp_path, installed):
    server = Value({"command": "a-server"}, str(tmp_path / "servers.json"))
    configuration = Configuration({"mcpServers.a": server, "theme": Value("light", "--theme")})
    plan = build_plan(
        installed, environment={}, directory=tmp_path, configuration=configuration
    ).plan
    assert plan["session"]["protected_places"] == {"add": [str(tmp_path / "servers.json")]}
