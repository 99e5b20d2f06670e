"""Validators: what they check, in which words, and what suites ask of them."""

from __future__ import annotations

import asyncio
import sys

import pytest
from amplifier_core.validation import (
    ContextValidator,
    HookValidator,
    MountPlanValidationResult,
    MountPlanValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
    ValidationCheck,
    ValidationResult,
)

KINDS = {
    "provider": ProviderValidator, "tool": ToolValidator, "hook": HookValidator, "orchestrator": OrchestratorValidator, "context": ContextValidator,
}  # fmt: skip

GOOD = {
    "provider": """
from amplifier_core import ChatResponse, ProviderInfo, TextBlock

class Own:
    name = "own"
    def get_info(self): return ProviderInfo(id="own", display_name="Own")
    async def list_models(self): return []
    async def complete(self, request, **kwargs): return ChatResponse(content=[TextBlock(text="x")])
    def parse_tool_calls(self, response): return []

async def mount(coordinator, config):
    if config.get("off"): return None
    await coordinator.mount("providers", Own(), name="own")
""",
    "tool": """
from amplifier_core import ToolResult

class Own:
    name = "own"
    description = "Own."
    input_schema = {"type": "object"}
    async def execute(self, input): return ToolResult()

async def mount(coordinator, config):
    if config.get("off"): return None
    await coordinator.mount("tools", Own(), name="own")
""",
    "hook": """
from amplifier_core import HookResult

class Own:
    async def handle(self, event, data): return HookResult()

async def mount(coordinator, config):
    remove = coordinator.hooks.register("tool:pre", Own().handle, priority=0, name="own")
    def cleanup(): remove()
    return cleanup
""",
    "orchestrator": """
class Own:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs): return "x"

async def mount(coordinator, config):
    if config.get("off"): return None
    await coordinator.mount("orchestrator", Own())
""",
    "context": """
class Own:
    async def add_message(self, message): pass
    async def get_messages_for_request(self, token_budget=None, provider=None): return []
    async def get_messages(self): return []
    async def set_messages(self, messages): pass
    async def clear(self): pass

async def mount(coordinator, config):
    if config.get("off"): return None
    await coordinator.mount("context", Own())
""",
}
EVERY = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def check(tmp_path):
    number = iter(range(100))
    made = []

    def run(kind, source, config=None, as_file=False):
        name = f"suite_module_{kind}_{next(number)}"
        if as_file:
            path = tmp_path / f"{name}.py"
            path.write_text(source)
        else:
            path = tmp_path / name
            path.mkdir()
            (path / "__init__.py").write_text(source)
        made.append(name)
        return asyncio.run(KINDS[kind]().validate(str(path), config=config))

    yield run
    for name in made:
        sys.modules.pop(name, None)


def by_name(result):
    return {c.name: (c.passed, c.severity) for c in result.checks}


@EVERY
def test_good_modules_pass(check, kind):
    for as_file in (False, True):
        result = check(kind, GOOD[kind], as_file=as_file)
        assert result.passed, result.errors
        assert (result.module_type, result.errors, result.warnings) == (kind, [], [])
        assert [c.name for c in result.checks][:4] == [
            *("module_importable", "mount_exists", "mount_signature", "protocol_compliance")
        ]
        assert result.summary().startswith("PASSED: ")


@EVERY
@pytest.mark.parametrize(
    ("source", "failing", "word"),
    [
        ("x = 1\n", "mount_exists", "mount"),
        ("mount = 5\n", "mount_exists", "mount"),
        ("def mount(coordinator, config): return None\n", "mount_signature", "async"),
        ("async def mount(coordinator): return None\n", "mount_signature", "coordinator, config"),
        ("async def mount(:\n", "module_importable", ""),
        ("import module_that_is_not_there\n", "module_importable", "module_that_is_not_there"),
        ("raise ValueError('at import')\n", "module_importable", "at import"),
        (
            "async def mount(coordinator, config): raise KeyError('in mount')\n",
            "protocol_compliance",
            "in mount",
        ),
        (
            "async def mount(c, config): pass\ndef on_session_ready(c): pass\n",
            "on_session_ready_async",
            "async",
        ),
        (
            "async def mount(c, config): pass\nasync def on_session_ready(): pass\n",
            "on_session_ready_async",
            "coordinator",
        ),
    ],
)
def test_bad_modules_fail_in_same_place(check, kind, source, failing, word):
    result = check(kind, source)
    assert not result.passed
    failed = [c for c in result.errors if c.name == failing]
    assert failed
    assert word.lower() in failed[0].message.lower()


@EVERY
def test_invalid_paths(kind, tmp_path):
    result = asyncio.run(KINDS[kind]().validate("/nonexistent/path"))
    assert not result.passed
    assert any("import" in c.message.lower() for c in result.checks)
    (tmp_path / "empty").mkdir()
    result = asyncio.run(KINDS[kind]().validate(tmp_path / "empty"))
    assert any("__init__.py" in c.message for c in result.errors)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hook"])
def test_lone_cleanup_is_warning(check, kind):
    result = check(kind, "async def mount(coordinator, config): return lambda: None\n")
    assert result.passed
    assert by_name(result)["protocol_compliance"] == (True, "warning")


@pytest.mark.parametrize(
    ("kind", "old", "new", "name", "outcome"),
    [
        ("provider", 'name = "own"', "name = 5", "provider_name", (False, "error")),
        ("provider", "async def list_models", "def list_models", "provider_list_models", (False, "error")),
        ("provider", "async def complete(self, request, **kwargs)", "async def complete(self)", "provider_complete", (False, "error")),
        ("tool", 'name = "own"', 'name = ""', "tool_name", (False, "error")),
        ("tool", "async def execute(self, input)", "def execute(self, input)", "tool_execute", (False, "error")),
        ("tool", "async def execute(self, input)", "async def execute(self)", "tool_execute", (False, "error")),
        ("orchestrator", "prompt, context, providers, tools, hooks, **kwargs", "prompt, context", "orchestrator_execute", (False, "error")),
        ("context", "async def clear", "def clear", "context_clear", (False, "error")),
        ("context", "async def add_message(self, message)", "async def add_message(self)", "context_add_message", (False, "error")),
    ],
)  # fmt: skip
def test_members_are_examined(check, kind, old, new, name, outcome):
    assert old in GOOD[kind]
    result = check(kind, GOOD[kind].replace(old, new))
    assert by_name(result)[name] == outcome
    assert not result.passed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hook"])
def test_missing_member_breaks_compliance(check, kind):
    member = {
        "provider": "parse_tool_calls",
        "tool": "execute",
        "orchestrator": "execute",
        "context": "set_messages",
    }[kind]
    result = check(kind, GOOD[kind].replace(member, f"{member}_no"))
    assert by_name(result)["protocol_compliance"] == (False, "error")


def test_order_of_checks(check):
    source = "async def mount(c, config): pass\ndef on_session_ready(c): pass\n"
    names = [c.name for c in check("hook", source).checks]
    assert names.index("mount_signature") < names.index("on_session_ready_async")
    assert "on_session_ready_async" not in [c.name for c in check("hook", GOOD["hook"]).checks]


# ── results ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make",
    [lambda: ValidationResult(module_type="tool", module_path="/x"), MountPlanValidationResult],
    ids=["module", "plan"],
)
def test_results(make):
    result = make()
    assert (result.passed, result.errors, result.warnings, result.checks) == (True, [], [], [])
    result.add(ValidationCheck(name="a", passed=True, message="m", severity="info"))
    result.add(ValidationCheck("b", False, "m", "warning"))
    assert (result.passed, len(result.warnings)) == (True, 1)
    result.add(ValidationCheck("c", False, "m", "error"))
    assert (result.passed, [c.name for c in result.errors]) == (False, ["c"])
    assert result.summary() == "FAILED: 1/3 checks passed (1 errors, 1 warnings)"
    assert ValidationCheck("a", True, "m", "info") == ValidationCheck("a", True, "m", "info")


def test_errors_as_text():
    result = MountPlanValidationResult()
    assert "No errors" in result.format_errors()
    result.add(ValidationCheck("missing_session", False, "Session section is missing", "error"))
    text = result.format_errors()
    assert "Mount Plan Validation Failed" in text
    assert "missing_session" in text
    assert "Session section is missing" in text


SESSION = {"orchestrator": {"module": "loop"}, "context": {"module": "context"}}


@pytest.mark.parametrize(
    "plan",
    [
        "text",
        None,
        {"providers": []},
        {"session": "text"},
        {"session": {"context": {"module": "c"}}},
        {"session": {"orchestrator": {"module": "o"}}},
        {"session": {**SESSION, "orchestrator": {}}},
        {"session": {**SESSION, "orchestrator": {"module": ""}}},
        {"session": {**SESSION, "orchestrator": {"module": 5}}},
        {"session": {**SESSION, "orchestrator": {"module": "o", "config": "x"}}},
        {"session": SESSION, "providers": {"module": "p"}},
        {"session": SESSION, "tools": [{"config": {}}]},
    ],
)
def test_bad_plans(plan):
    result = MountPlanValidator().validate(plan)
    assert not result.passed
    assert result.format_errors().startswith("Mount Plan Validation Failed")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"providers": [], "hooks": []},
        {"tools": [{"module": "t", "config": {}, "source": "s"}]},
        {"agents": {"a": {}}},
    ],
)
def test_good_plans(more):
    assert MountPlanValidator().validate({"session": SESSION, **more}).passed
