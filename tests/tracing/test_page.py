"""The trace page in a real browser: rows, filters, keyboard, both widths, both colour schemes, and no text that is obeyed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.tracing import Trace, write_page
from tests._support.browser import Tab, open_tab
from tests.tracing._logs import line, model_call, small_session, tool_call, turn
from tests.tracing.test_trace import read

INJECTIONS = (
    "</script><script>document.title='ran'</script>",
    "<img src=x onerror=\"document.title='ran'\">",
    "<svg onload=\"document.title='ran'\">",
    "<!--<script>",
    "]]><script>document.title='ran'</script>",
    '"><a href="javascript:document.title=\'ran\'">x</a>',
    "<style>*{display:none}</style>",
    "<iframe src='https://example.org'></iframe>",
    "${document.title='ran'}`'\"\\u003cscript\\u003e",
    "<base href='https://example.org/'><link rel=stylesheet href=x.css>\u2028\u202eevil\x1b[2J",
)
OVERFLOWING = """[...document.querySelectorAll('body *:not(.label *)')]
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(each => each.outerHTML)"""
ROWS = "document.querySelectorAll('#tree .row').length"
COUNT = "document.getElementById('count').textContent"
CHOSEN = "document.querySelector('.row[aria-selected=true] .name')?.textContent"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """One browser for the whole file."""
    with open_tab() as tab:
        yield tab


def show(tab: Tab, folder: Path, trace: Trace, *, width: int = 1280) -> None:
    page = folder / "trace.html"
    page.write_text(write_page(trace), encoding="utf-8")
    tab.problems.clear()
    tab.send("Network.enable")
    tab.requests.clear()
    tab.open(page.as_uri(), width=width)


def fill(tab: Tab, text: str) -> None:
    tab.evaluate("document.getElementById('search').focus()")
    tab.evaluate("document.getElementById('search').select()")
    tab.send("Input.insertText", text=text)


def hostile_session() -> Trace:
    lines = [line("session:start", 0, session_id) for session_id in INJECTIONS]
    for number, text in enumerate(INJECTIONS):
        about: dict[str, Any] = {
            "tool_name": text,
            "tool_call_id": f"c{number}",
            "tool_input": {text: [text]},
        }
        lines += [
            line("execution:start", 1, prompt=text),
            line("tool:pre", 1, **about),
            line("tool:error", 2, error={"message": text, "type": text}, **about),
            line(text, 3, message=text),
            line("provider:response", 3, provider=text, response={"model": text, "content": text}),
            f"{text}\n".encode(errors="replace"),
        ]
    trace = read(*lines)
    trace.notes += INJECTIONS
    return trace


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_log_text_is_inert_and_fits(tab, tmp_path, width):
    trace = hostile_session()
    show(tab, tmp_path, trace, width=width)
    assert tab.evaluate(COUNT) == f"{len(trace.rows)} of {len(trace.rows)} rows"
    # Also what the details show.
    payloads = (
        "(_, index) => { choose(index); return document.querySelectorAll('#details pre').length; }"
    )
    assert sum(tab.evaluate(f"shown.map({payloads})")) >= 4 * len(INJECTIONS)
    assert tab.evaluate("document.querySelectorAll('script').length") == 2
    assert (
        tab.evaluate(
            "document.querySelectorAll('img, svg, iframe, a, base, link, body style').length"
        )
        == 0
    )
    assert tab.evaluate("document.title") == "Session s"
    assert tab.evaluate("document.body.innerText.includes('\\u202e')") is False
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.evaluate(OVERFLOWING) == []
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith("file:")] == []
    assert len(tab.requests) == 1


@pytest.mark.slow
def test_policy_refuses_scripts_styles_and_loads(tab, tmp_path):
    planted = "<script>document.title = 'ran'</script><p id=p style='color: red'>x</p><img src=x.png></body>"
    page = tmp_path / "trace.html"
    page.write_text(
        write_page(read(*small_session())).replace("</body>", planted), encoding="utf-8"
    )
    tab.problems.clear()
    tab.open(page.as_uri(), width=1280)
    assert tab.evaluate("document.title") == "Session s"
    assert len([text for text in tab.problems if "Content Security Policy" in text]) == 3, (
        tab.problems
    )
    assert tab.evaluate("getComputedStyle(document.querySelector('#p')).color") != "rgb(255, 0, 0)"
    with pytest.raises(AssertionError, match="TrustedHTML"):
        tab.evaluate("document.body.innerHTML = '<b>x</b>'")


@pytest.mark.slow
def test_rows_match_trace(tab, tmp_path):
    trace = read(*small_session(), b"not json\n")
    show(tab, tmp_path, trace)
    labels = tab.evaluate(
        "[...document.querySelectorAll('#tree .row')].map(each => [each.ariaLevel, each.ariaLabel])"
    )
    assert labels == [
        ["1", "session s, 6.00 s"],
        ["2", "turn, 4.00 s, do it"],
        ["3", "model mock (m-1), 2.00 s, 10 → 5 tokens, $0.0100, first token after 1.00 s, hello"],
        ["3", 'tool bash, 500 ms, {"command": "ls"}'],
        ["3", "model mock (m-1), 1.00 s, 10 → 5 tokens, $0.0100, first token after 500 ms, hello"],
        ["1", "1 line not read, failed, not JSON"],
    ]
    assert tab.evaluate("document.getElementById('summary').textContent") == (
        "1 turn, 2 model calls, 1 tool call, 30 tokens, $0.0200, 4.00 s, 1 line not read"
    )
    slow = tab.evaluate(
        "[...document.querySelectorAll('#slow button')].map(each => each.textContent)"
    )
    assert slow == ["model mock (m-1) 2.00 s", "model mock (m-1) 1.00 s", "tool bash 500 ms"]
    tab.evaluate("document.querySelectorAll('#slow button')[2].click()")
    assert tab.evaluate(CHOSEN) == "tool bash"
    assert '"command": "ls"' in tab.evaluate("document.getElementById('details').innerText")
    events = tab.evaluate(
        "[...document.querySelectorAll('#details h3')].map(each => each.textContent)"
    )
    assert events == ["tool:pre after 3.000 s, event 9", "tool:post after 3.500 s, event 10"]


@pytest.mark.slow
def test_page_works_by_keyboard(tab, tmp_path):
    show(tab, tmp_path, read(*small_session()))
    tab.evaluate("document.getElementById('tree').focus()")
    for key, chosen in (
        ("ArrowDown", "session s"),
        ("ArrowDown", "turn"),
        ("ArrowRight", "model mock (m-1)"),
        ("ArrowLeft", "turn"),
        ("End", "model mock (m-1)"),
        ("ArrowUp", "tool bash"),
        ("Home", "session s"),
    ):
        tab.press(key)
        assert tab.evaluate(CHOSEN) == chosen
        active = "document.getElementById(document.getElementById('tree').getAttribute('aria-activedescendant'))"
        assert tab.evaluate(f"{active}.ariaSelected") == "true"
    tab.press("ArrowDown")
    tab.press("ArrowLeft")
    assert tab.evaluate(ROWS) == 2
    assert tab.evaluate("document.querySelectorAll('.row')[1].ariaExpanded") == "false"
    tab.press("ArrowRight")
    assert tab.evaluate(ROWS) == 5
    tab.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "details"
    tab.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "tree"
    tab.press("/", "/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.send("Input.insertText", text="bash")
    assert tab.evaluate(COUNT) == "1 of 5 rows"
    tab.press("Escape")
    assert tab.evaluate("[document.activeElement.id, document.getElementById('search').value]") == [
        "tree",
        "",
    ]


@pytest.mark.slow
def test_every_control_has_name(tab, tmp_path):
    show(tab, tmp_path, read(*small_session()))
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "checkbox", "searchbox", "tree", "treeitem", "textbox")
    used = [node for node in nodes if node.get("role", {}).get("value") in roles]
    assert len(used) >= 10
    assert [node for node in used if not node.get("name", {}).get("value")] == []


@pytest.mark.slow
def test_filter_and_search_keep_ancestors(tab, tmp_path):
    failing = [
        *tool_call(6, 1, "c2", name="grep")[:1],
        line("tool:error", 7, tool_call_id="c2", error="needle", level="ERROR"),
    ]
    show(tab, tmp_path, read(*small_session(), *turn(5, *failing, end=8)))
    names = (
        "[...document.querySelectorAll('#tree .row:not(.dim) .name')].map(each => each.textContent)"
    )
    fill(tab, "NEEDLE")
    assert tab.evaluate(names) == ["tool grep"]
    assert tab.evaluate(ROWS) == 3
    fill(tab, "no such text")
    assert (tab.evaluate(ROWS), tab.evaluate(COUNT)) == (0, "0 of 7 rows")
    tab.evaluate("document.getElementById('search').value = ''; filter()")
    tab.evaluate("document.getElementById('problems').click()")
    assert tab.evaluate(names) == ["tool grep"]
    tab.evaluate(
        "document.getElementById('problems').click(); document.getElementById('kind-model').click()"
    )
    assert tab.evaluate(names) == ["session s", "turn", "tool bash", "turn", "tool grep"]
    tab.evaluate(
        "document.querySelector('#slow button').click()"
    )  # leads to a row that is filtered out
    assert tab.evaluate(CHOSEN) == "model mock (m-1)"
    tab.evaluate("document.getElementById('close-all').click()")
    assert tab.evaluate(ROWS) == 3
    tab.evaluate("document.getElementById('open-all').click()")
    assert tab.evaluate(ROWS) == 7


@pytest.mark.slow
def test_large_trace_has_few_elements(tab, tmp_path):
    trace = Trace("s")
    while trace.lines < 10_000:
        trace.add_lines(
            [
                *turn(
                    1,
                    *model_call(1, 2),
                    *tool_call(3, 0.5),
                    line("user:notification", 4, message="x"),
                    end=5,
                )
            ]
        )
    show(tab, tmp_path, trace)
    assert tab.evaluate(COUNT) == f"{len(trace.rows)} of {len(trace.rows)} rows"
    count = "document.querySelectorAll('*').length"
    assert tab.evaluate(count) < 1200
    height = tab.evaluate("document.getElementById('tree').scrollHeight")
    assert height == 26 * len(trace.rows)
    # Rows that stay in view are not made again, so that scrolling is smooth.
    tab.evaluate("for (const row of document.querySelectorAll('.row')) row.isKept = true")
    for place, kept in ((260, "all"), (26 * 25, "some")):
        tab.evaluate(f"document.getElementById('tree').scrollTop = {place}; drawScrolled()")
        marks = tab.evaluate(
            "[...document.querySelectorAll('.row')].map(row => Boolean(row.isKept))"
        )
        assert all(marks) if kept == "all" else any(marks) and not all(marks)
        tops = tab.evaluate("[...document.querySelectorAll('.row')].map(row => row.offsetTop)")
        assert tops == sorted(tops)
    for part in (0.25, 0.5, 1.0):
        tab.evaluate(f"document.getElementById('tree').scrollTop = {part * height}; drawScrolled()")
        assert tab.evaluate(count) < 1200
        assert tab.evaluate(ROWS) > 15
    tab.evaluate("document.getElementById('tree').scrollTop -= 26 * 60; drawScrolled()")
    tops = tab.evaluate("[...document.querySelectorAll('.row')].map(row => row.offsetTop)")
    assert tops == sorted(tops)
    tab.evaluate(f"document.getElementById('tree').scrollTop = {height}; drawScrolled()")
    last = "document.querySelector('#tree .row:last-child').id"
    assert tab.evaluate(last) == f"row-{len(trace.rows) - 1}"
    tab.evaluate("document.getElementById('tree').focus()")
    tab.press("Home")
    tab.press("End")
    assert (
        tab.evaluate("document.querySelector('.row[aria-selected=true]').id")
        == f"row-{len(trace.rows) - 1}"
    )


@pytest.mark.slow
def test_long_call_shows_events_in_portions(tab, tmp_path):
    pieces = [line("content_block:delta", 2, delta=str(number)) for number in range(120)]
    show(tab, tmp_path, read(line("provider:request", 1), *pieces))
    tab.evaluate("choose(1)")
    headings = "document.querySelectorAll('#details h3').length"
    assert tab.evaluate(headings) == 50
    tab.evaluate("document.querySelector('#details button').click()")
    tab.evaluate("document.querySelector('#details button').click()")
    assert tab.evaluate(headings) == 121


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_have_contrast(tab, tmp_path, scheme, width):
    tab.send(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    try:
        failing = line("tool:error", 5, tool_name="x", error="broken", level="ERROR")
        asked = line("approval:required", 5, prompt="May it?")
        show(
            tab,
            tmp_path,
            read(*small_session(), failing, asked, line("user:notification", 6)),
            width=width,
        )
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}[scheme]
        for selector in ("#summary", "#count", ".name", ".text", ".took", ".word"):
            colours = tab.evaluate(
                f"[...document.querySelectorAll({json.dumps(selector)})].map(each => getComputedStyle(each).color)"
            )
            assert colours, selector
            for colour in set(colours):
                assert contrast(colour, paper) >= 4.5, (selector, colour)
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        for selector in ("#tree", "#details", "#search"):
            assert (
                tab.evaluate(
                    f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().width"
                )
                > 200
            )
    finally:
        tab.send("Emulation.setEmulatedMedia", features=[])


def contrast(one: str, other: str) -> float:
    """By the definition of the Web Content Accessibility Guidelines."""
    lights = []
    for colour in (one, other):
        parts = [
            int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(", ")
        ]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_payloads_of_page_are_bounded():
    huge: dict[str, Any] = {"a": "x" * 100_000, "b": ["y" * 3000] * 100}
    trace = read(*(line("user:notification", number, **huge) for number in range(20)))
    assert len(write_page(trace)) < 20 * 25_000 + 100_000
    assert "characters left out" in write_page(trace)


@pytest.mark.slow
def test_pause_between_turns_leaves_room(tab, tmp_path):
    show(tab, tmp_path, read(*turn(0, end=4), *turn(3000, end=3004)))  # resumed after fifty minutes
    bars = tab.evaluate(
        "[...document.querySelectorAll('.row.turn .bar')].map((bar) => [parseFloat(bar.style.left), parseFloat(bar.style.width)])"
    )
    (first, second), shown = bars, 100 / (4 + 0.4 + 4)
    assert first == pytest.approx([0, 4 * shown], abs=0.1)
    assert second == pytest.approx([4.4 * shown, 4 * shown], abs=0.1)
    tab.evaluate("reveal(rows.find((row) => row.k === 'turn' && row.s > 100 + begin).n)")
    assert "after 3000.000 s" in tab.evaluate("document.getElementById('details').textContent")


@pytest.mark.slow
def test_json_returned_as_text_is_readable(tab, tmp_path):
    about: dict[str, Any] = {"tool_name": "query", "tool_call_id": "c1", "tool_input": {}}
    output = {
        "success": True,
        "output": '{"rows": [{"city": "Brest"}], "more": false}',
        "error": "[not json",
    }
    lines = [line("tool:pre", 1, **about), line("tool:post", 2, **about, tool_result=output)]
    show(tab, tmp_path, read(*turn(0, *lines, end=4)))
    tab.evaluate("reveal(rows.find((row) => row.k === 'tool').n)")
    text = tab.evaluate("document.getElementById('details').textContent")
    assert '"city": "Brest"' in text
    assert '"[not json"' in text
