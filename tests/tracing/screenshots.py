"""Makes the pictures of the trace page in the manual: ``python -m tests.tracing.screenshots``."""

from __future__ import annotations

import base64
from typing import Any

from amplifier.tracing import Trace, write_page
from tests._support.browser import open_tab
from tests._support.tree import ROOT
from tests.tracing._logs import line, model_call, tool_call, turn

FOLDER = ROOT / "docs" / "how-to" / "images"
PICTURES = (("trace-light.png", "light", 1280, 560), ("trace-dark.png", "dark", 390, 700))


def demo() -> Trace:
    """A session with a delegated task, a question, a failure and a retry."""
    session, child = "20260101-000000-a1b2c3", "20260101-000000-a1b2c3-0123456789abcdef_explorer"
    call: dict[str, Any] = {
        "tool_name": "bash",
        "tool_call_id": "c2",
        "tool_input": {"command": "pytest -q tests/test_parser.py"},
    }
    asked: dict[str, Any] = {
        "hook_name": "hooks-approval",
        "event": "tool:pre",
        "prompt": "bash: pytest -q tests/test_parser.py",
    }
    failed = {
        "success": False,
        "output": None,
        "error": {"message": "exit code 1: 2 failed, 31 passed"},
    }
    lines = [
        line("session:start", 0, session),
        line("execution:start", 0.1, session, prompt="Why does the parser test fail?"),
        *model_call(0.1, 2.4, session, cost="0.0123"),
        *tool_call(2.6, 9.1, "c1", session, name="task")[:1],
        line(
            "task:agent_spawned",
            2.6,
            session,
            agent="explorer",
            sub_session_id=child,
            tool_call_id="c1",
        ),
        tool_call(2.6, 9.1, "c1", session, name="task")[1],
        *model_call(11.8, 1.9, session, cost="0.0151"),
        line("tool:pre", 13.8, session, **call),
        line("approval:required", 13.8, session, **asked),
        line("approval:granted", 16.0, session, **asked, reason="Allow once"),
        line("tool:post", 21.3, session, level="ERROR", **call, tool_result=failed, result=failed),
        line("provider:request", 21.3, session, provider="mock"),
        line(
            "provider:retry",
            21.9,
            session,
            level="WARNING",
            provider="mock",
            attempt=1,
            error_message="overloaded",
        ),
        *model_call(21.3, 4.2, session, cost="0.0178")[1:],
        line("execution:end", 25.6, session, status="completed", response="…"),
        line("session:end", 25.7, session, status="completed"),
        line("session:fork", 2.7, child, parent_id=session, parent_call_id="c1"),
        *turn(
            2.8,
            *model_call(2.8, 1.6, child, cost="0.0031"),
            *tool_call(4.5, 0.2, "e1", child, name="grep"),
            *tool_call(4.6, 0.1, "e2", child, name="read_file"),
            *model_call(4.9, 6.5, child, cost="0.0044"),
            end=11.5,
            session_id=child,
        ),
        line("session:end", 11.6, child, status="completed"),
    ]
    trace = Trace(session)
    trace.add_lines(lines)
    return trace


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    page = FOLDER / "trace.html"
    page.write_text(write_page(demo()), encoding="utf-8")
    try:
        with open_tab() as tab:
            for name, scheme, width, height in PICTURES:
                tab.send(
                    "Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-color-scheme", "value": scheme}],
                )
                tab.open(page.as_uri(), width=width, height=height)
                tab.evaluate("choose(shown.findIndex(({ row }) => row.l === 'tool bash'))")
                (FOLDER / name).write_bytes(
                    base64.b64decode(tab.send("Page.captureScreenshot")["data"])
                )
    finally:
        page.unlink()


if __name__ == "__main__":
    main()
