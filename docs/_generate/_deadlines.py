"""The page of deadlines: those of the plan, and where else time is limited, from the constants of the code."""

from __future__ import annotations

from amplifier.kernel.hooks import dispatch, registry
from amplifier.kernel.runtime import cancellation, cleanup, deadlines, watchdog
from amplifier.models import ApprovalGate
from amplifier.modules.loop._options import TurnOptions
from amplifier.plan.spec import DEADLINE_NAMES, DEFAULT_DEADLINES

from ._markdown import fill, one_line, page, table
from ._plan_schema import plan_schema

_WHEN_IT_PASSES = {
    "mount": """
        The module is undone and reported: `module:load_failed` with the reason `deadline`, and an entry in
        `session.failures`. Without its orchestrator, its context or a gate (`on_failure: deny`) the session does not open and
        raises `ModuleLoadError`. With `strict` any failure keeps it from opening: one is raised as itself, several as an
        `OpeningErrors`.""",
    "ready": """
        The module stays mounted and is reported: `module:on_session_ready_failed`, and `session.failures`. A gate that does not
        become ready keeps the session from opening, and so does any module with `strict`.""",
    "hook": """
        The handler is cancelled and skipped, or denies if it is a gate; `hook:timeout`. The same seconds hold for `add_message`
        of the context when a hook injects something (`DeadlineExceeded`) and for `show_message` of the display (logged).""",
    "contribution": "The contributor is cancelled, left out and logged by name.",
    "collection": """
        From then on async contributors are cut off, left out and logged; what plain functions contribute still counts.""",
    "cleanup": "The cleanup is cancelled and the next one runs; `cleanup:failed`, and `session.cleanup_failures`.",
    "teardown": """
        The whole closing shares it, handlers of events and cancel callbacks included. <share> of its own deadline is kept for every
        cleanup, or less if there are many, so that all of them still run.""",
    "turn": """
        The turn is cancelled with all its tools and children; `cancel:completed`, then `execute` raises
        `ExecutionTimeout`.""",
}

_PAGE = """
    Every call from the kernel into a module has a deadline. When it passes, the call is cancelled, and the report
    names the module. [Set deadlines](../how-to/set-deadlines.md) shows how.

    ## In the plan

    Keys of `session.deadlines`, in seconds: a number above 0, or null for no limit, on purpose. A child session made with
    `fork` inherits its parent's deadlines where its own plan sets none.

    <plan>

    In Python they are an `amplifier.plan.Deadlines`; those of a session are in `session.coordinator.deadlines`.

    ## In a call

    <calls>

    ## Fixed

    <fixed>

    ## In built-in modules

    The kernel does not know how long a model or a tool may take; the loop that calls them sets the limit. These are keys of the
    `config` of loop-basic, loop-streaming and loop-events, in seconds; null is no limit. What other modules have is on
    [their pages](modules/index.md).

    <loops>

    ## Code that refuses cancellation

    Python cannot end code that swallows its cancellation or never awaits. The kernel waits for it and reports it <unwinding>
    second after the deadline and then at intervals that double up to <longest> minutes: in the log and as
    `module:unresponsive`, with the module, the task and the line at which it waits.

    A handler that takes more than <slow> seconds and ends in time is logged, once. A call may get <slack> less time than its
    deadline.
"""


def deadlines_page() -> str:
    """Show every deadline of the kernel, and where else time is limited."""
    text = fill(
        _PAGE,
        plan=_of_the_plan(),
        calls=table(("where", "default", "when it passes"), _in_calls()),
        fixed=table(("what", "seconds", "when it passes"), _fixed()),
        loops=table(("key", "default", "when it passes"), _of_loops()),
        unwinding=f"{watchdog.UNWIND_GRACE:g}",
        longest=f"{watchdog.MAX_INTERVAL / 60:g}",
        slow=f"{dispatch.SLOW_HANDLER_SECONDS:g}",
        slack=f"{deadlines.TOLERANCE:.0%}",
        share=f"{cleanup.MIN_SHARE:.0%}",
    )
    return page("Deadlines", text)


def _of_the_plan() -> str:
    assert tuple(_WHEN_IT_PASSES) == DEADLINE_NAMES, "every deadline has its consequence"
    words = plan_schema()["properties"]["session"]["properties"]["deadlines"]["properties"]
    rows = [
        (
            f"`{name}`",
            words[name]["description"],
            _seconds(getattr(DEFAULT_DEADLINES, name)),
            one_line(consequence),
        )
        for name, consequence in _WHEN_IT_PASSES.items()
    ]
    return table(("key", "what", "default", "when it passes"), rows)


def _in_calls() -> list[tuple[str, str, str]]:
    gate = ApprovalGate()
    decides = f"Its default decides: `{gate.default}`, unless the hook sets another."
    return [
        (
            "`session.execute(…, timeout=…)`, `session.stream(…, timeout=…)`",
            "`turn` of the plan",
            "As `turn`.",
        ),
        ("`hooks.register(…, timeout=…)`", "`hook` of the plan", "As `hook`."),
        (
            "`hooks.emit_and_collect(…, timeout=…)`",
            "1",
            "Handlers without an answer are left out and logged.",
        ),
        (
            "`approval_timeout` of a `HookResult`, `timeout` of an `ApprovalGate`",
            _seconds(gate.timeout),
            decides,
        ),
        (
            "`cancellation.request_graceful(grace=…)`",
            "none",
            "The graceful stop becomes an immediate one.",
        ),
    ]


def _fixed() -> list[tuple[str, str, str]]:
    terminal = "All handlers of one terminal event together (those marked † in [events](events.md))"
    cut_off = "The handler under way is cancelled; those after it are called and cut off at their first await."
    callback = "One callback of `cancellation.on_cancel`"
    return [
        (terminal, _seconds(registry.TERMINAL_SECONDS), cut_off),
        (
            callback,
            _seconds(cancellation.CALLBACK_SECONDS),
            "It is cancelled and logged; the next one runs.",
        ),
    ]


def _of_loops() -> list[tuple[str, str, str]]:
    options = TurnOptions(orchestrator="")
    consequences = {
        "tool_timeout": "The call is cancelled. The model gets a result that states the timeout, and the turn continues; `tool:error`.",
        "provider_timeout": "The model call is cancelled and fails with `LLMTimeoutError`, which is retried.",
        "max_retry_after": "A service that asks for a longer wait is not waited for; its error leaves at once.",
    }
    return [
        (f"`{key}`", _seconds(getattr(options, key)), text) for key, text in consequences.items()
    ]


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
