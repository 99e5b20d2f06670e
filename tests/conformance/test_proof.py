"""Proofs of plans: what sound compositions keep, and what planted faults break, through which modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.cli import main
from amplifier.conformance.proof import Proof, examine_plan, prove_plan
from amplifier.conformance.proof.world import pair_problems
from amplifier.errors import AmplifierError
from amplifier.models import HookResult, ToolResult

BACKENDS = ("asyncio", "trio")
SOUND = ("hooks-redaction", "hooks-approval")


def plan(
    *, tools: tuple[Any, ...] = (), hooks: tuple[Any, ...] = (), context: Any = "context-simple"
) -> dict[str, Any]:
    return {
        "session": {"orchestrator": "loop-streaming", "context": context},
        "providers": [{"module": "provider-anthropic"}],
        "tools": [{"module": "tool-todo"}, *tools],
        "hooks": [*({"module": name} for name in SOUND), *hooks],
    }


def laws(proof: Proof) -> list[str]:
    return [each.law for each in proof.broken]


def case(*answers: Any, **more: Any) -> dict[str, Any]:
    return {
        "turns": [[list(each) if isinstance(each, tuple) else each for each in answers]],
        "approval": "allow",
        **more,
    }


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sound_plan_keeps_every_law_and_leaves_the_process_as_it_was(backend):
    environment, here = dict(os.environ), Path.cwd()
    proof = prove_plan(plan(), sessions=60, backends=[backend])
    assert proof.broken == []
    assert proof.lines()[0].startswith("all 10 laws hold in ")
    assert (dict(os.environ), Path.cwd()) == (environment, here)
    assert all(0 < done <= count for done, count in proof.points.values())


_CALLS = ("Hm.", call("todo", action="list"), call("faulty_tool", does="raise"))
FAULTS: dict[str, dict[str, Any]] = {
    "a hook that raises": case(_CALLS, hooks=[{"event": "tool:pre", "does": "raise"}]),
    "a hook that hangs": case(_CALLS, hooks=[{"event": "tool:post", "does": "hang"}]),
    "a stop": case(_CALLS, hooks=[{"event": "tool:pre", "does": "stop"}]),
    "a stop at once": case(_CALLS, hooks=[{"event": "tool:post", "does": "stop at once"}]),
    "an unanswered question": case(
        _CALLS, hooks=[{"event": "tool:pre", "does": "ask"}], approval="silent"
    ),
    "a denied request": case(_CALLS, hooks=[{"event": "provider:request", "does": "deny"}]),
    "a model that is not reached": case(
        (call("faulty_tool", does="nothing"),), {"error": "NetworkError"}
    ),
    "a context that is too long": case(
        (call("faulty_tool", does="nothing"),), {"error": "ContextLengthError"}
    ),
    "a model that hangs": case((call("faulty_tool", does="nothing"),), {"error": "hang"}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAULTS)
def test_built_in_modules_keep_the_laws_under_a_fault(name, backend):
    prove_plan(plan(), case={**FAULTS[name], "cancel": _at(backend, 0)})


def test_a_process_that_is_not_the_plans_does_not_make_time_real(tmp_path):
    played = FAULTS["a model that hangs"]  # for minutes, in real time
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        prove_plan(plan(), case={**played, "cancel": _at("trio", 0)})
        assert other.poll() is None


def _at(backend: str, point: int) -> dict[str, Any]:
    return {"mode": "trio" if backend == "trio" else "asyncio-scope", "at": point, "second": None}


# ── planted faults ──


async def mount_interrupting_hook(coordinator: Any, config: Any) -> None:
    """Stores a message of its own at tool:post: behind the result if there is one call, between results if there are two."""

    async def interrupt(event: str, data: dict[str, Any]) -> HookResult | None:
        await coordinator.get("context").add_message({"role": "user", "content": "By the way."})
        return None

    coordinator.hooks.register("tool:post", interrupt, name="interrupting")


async def mount_failing_cleanup(coordinator: Any, config: Any) -> None:
    async def fail() -> None:
        raise OSError("the log cannot be closed")

    coordinator.register_cleanup(fail)


async def mount_unawaited(coordinator: Any, config: Any) -> None:
    """Makes a coroutine for each request and awaits it with the answer: if that does not come, never."""
    made: list[Any] = []

    async def begin(event: str, data: dict[str, Any]) -> None:
        made.append(anyio.lowlevel.checkpoint())

    async def end(event: str, data: dict[str, Any]) -> None:
        await made.pop()

    coordinator.hooks.register("provider:request", begin, name="begin")
    coordinator.hooks.register("provider:response", end, name="end")


class StubbornTool:
    """Does not stop when it is told to."""

    name = "stubborn"
    description = "Takes its time."

    def get_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}}

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
        return ToolResult(success=True)


class ForgetfulContext:
    """Shows only the newest messages to the model, wherever that cuts."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self._messages.append(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return list(self._messages[-3:])

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)

    async def clear(self) -> None:
        self._messages.clear()


async def mount_forgetful_context(coordinator: Any, config: Any) -> Any:
    return ForgetfulContext()


PLANTED = {
    "calls, by a hook": (
        plan(hooks=(mount_interrupting_hook,)),
        "calls",
        "hooks-mount-interrupting-hook",
    ),
    "calls, by a context": (
        plan(context=mount_forgetful_context),
        "calls",
        "context-mount-forgetful-context",
    ),
    "cleanup": (plan(hooks=(mount_failing_cleanup,)), "cleanup", "hooks-mount-failing-cleanup"),
    "nothing left": (plan(hooks=(mount_unawaited,)), "nothing left", "hooks-mount-unawaited"),
    "stop report": (plan(tools=(StubbornTool(),)), "ends", "tool-stubborn"),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_traced_to_its_module(name, backend):
    given, law, module = PLANTED[name]
    proof = examine_plan(given, sessions=160, backends=[backend])
    assert law in laws(proof), proof.lines()
    found = next(each for each in proof.broken if each.law == law)
    assert module in found.modules
    assert not any(sound in found.modules for sound in (*SOUND, "tool-todo")), found.lines()
    again = examine_plan(given, case=found.case)
    assert law in laws(again), "the case alone shows it again"


class _Blocks:
    name, description, input_schema = (
        "blocks",
        "Blocks the loop.",
        {"type": "object", "properties": {}},
    )

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        time.sleep(1_000)  # noqa: ASYNC251 - this is the fault
        return ToolResult(success=True, output="late")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_blocks_the_loop_is_interrupted_and_named_where_asked(backend, monkeypatch):
    monkeypatch.setattr("amplifier.conformance.proof.search._BLOCKED_SECONDS", 0.5)
    blocked = case((call("blocks"),), hooks=[], cancel=_at(backend, 0))
    proof = examine_plan(plan(tools=(_Blocks(),)), case=blocked, backends=[backend], alarm=True)
    assert laws(proof) == ["ends"]
    assert "the event loop was blocked for 0.5 s at" in proof.broken[0].what
    assert proof.broken[0].what.endswith("execute")
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0


class _NotesAlarm:
    name, description, input_schema = (
        "alarm",
        "Notes the handler.",
        {"type": "object", "properties": {}},
    )

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        await anyio.lowlevel.checkpoint()
        self.handlers.append(signal.getsignal(signal.SIGALRM))
        return ToolResult(success=True, output="noted")


@pytest.mark.parametrize("alarm", [True, False])
def test_an_examination_takes_the_alarm_only_where_asked(alarm):
    tool, before = _NotesAlarm(), signal.getsignal(signal.SIGALRM)
    given = case((call("alarm"),), hooks=[], cancel=_at("asyncio", 0))
    assert (
        examine_plan(plan(tools=(tool,)), case=given, backends=["asyncio"], alarm=alarm).broken
        == []
    )
    assert tool.handlers
    assert all((handler == before) is not alarm for handler in tool.handlers)
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_finding_names_law_modules_and_case():
    with pytest.raises(AssertionError, match="cleanup: every module is mounted") as caught:
        prove_plan(plan(hooks=(mount_failing_cleanup,)), sessions=40, backends=["asyncio"])
    text = str(caught.value)
    assert "the log cannot be closed" in text
    assert "with loop-basic, context-simple, hooks-mount-failing-cleanup on asyncio" in text
    assert '  case: {"turns": ' in text


@pytest.mark.slow
def test_equal_seeds_draw_equal_cases():
    given = plan(hooks=(mount_interrupting_hook,))
    one, other = (
        examine_plan(given, sessions=60, seed=7, backends=["asyncio"]).broken[0] for _ in range(2)
    )
    assert one == other


def test_a_plan_that_cannot_run_is_an_error_and_no_proof():
    with pytest.raises(AmplifierError, match="the plan cannot be run: "):
        examine_plan(plan(context="context-that-is-not-there"), sessions=40)


# ── the law about calls and results ──

ASKED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "a", "name": "x"}, {"id": "b", "name": "x"}],
}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASKED, result("a"), result("b")], None),
        ([ASKED, result("b"), result("a"), {"role": "assistant", "content": "done"}], None),
        ([ASKED, result("a")], "the calls ['b'] have no result before the next message"),
        (
            [ASKED, result("a"), {"role": "user", "content": "hm"}, result("b")],
            "['b'] have no result",
        ),
        (
            [ASKED, result("a"), result("a"), result("b")],
            "a result of 'a', which no message before it called",
        ),
        ([result("a")], "a result of 'a'"),
        (
            [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_call", "id": "c", "name": "x", "input": {}}],
                }
            ],
            "['c']",
        ),
    ],
)
def test_calls_and_results_belong_together(messages, problem):
    found = list(pair_problems(messages))
    assert (found == []) if problem is None else any(problem in each for each in found), found


# ── the command ──


def test_the_command_reports_a_broken_law_and_plays_its_case_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "amplifier_module_hooks_leak").mkdir()
    (tmp_path / "amplifier_module_hooks_leak" / "__init__.py").write_text(
        "async def mount(coordinator, config):\n"
        "    async def fail():\n        raise OSError('the log cannot be closed')\n\n"
        "    coordinator.register_cleanup(fail)\n",
        encoding="utf-8",
    )
    hook = {"module": "hooks-leak", "source": "."}
    (tmp_path / "plan.json").write_text(json.dumps({**plan(), "hooks": [hook]}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "prove", "plan.json", "--sessions", "30", "--backend", "asyncio"]) == 1
    shown = capsys.readouterr().out
    assert "1 of 10 laws broken in " in shown
    assert "with loop-basic, context-simple, hooks-leak on asyncio" in shown
    found = next(line for line in shown.splitlines() if line.startswith("  case: ")).removeprefix(
        "  case: "
    )
    assert main(["plan", "prove", "plan.json", "--case", found]) == 1
    assert "the log cannot be closed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["searched", "named"])
def test_modules_of_relative_folders_are_found(name, tmp_path, monkeypatch):
    root = tmp_path / "modules" / f"amplifier-module-tool-{name}"
    package = root / f"amplifier_module_tool_{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("async def mount(coordinator, config): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPLIFIER_MODULES", "modules" if name == "searched" else "")
    source = {"source": str(root.relative_to(tmp_path))} if name == "named" else {}
    proof = examine_plan({**plan(), "tools": [{"module": f"tool-{name}", **source}]}, sessions=2)
    assert [found.what for found in proof.broken if "could not be mounted" in found.what] == []
