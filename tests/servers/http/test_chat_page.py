"""The chat page in a real browser, served by `amplifier serve` on both backends."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.cli._sessions import SessionStore
from amplifier.store import SessionRecord
from tests._support import node_parts
from tests._support.browser import Tab, open_tab
from tests._support.terminal import run_cli
from tests._support.tree import ROOT
from tests.cli._scripted_agent import call
from tests.servers.http._server import Server, running
from tests.tracing._logs import small_session

ANSWER = "[...document.querySelectorAll('#log .agent .text')].at(-1)?.textContent.trim()"
STATE = "document.getElementById('state').textContent"


def type_prompt(tab: Tab, prompt: str) -> None:
    tab.evaluate("document.getElementById('prompt').focus()")
    tab.send("Input.insertText", text=prompt)
    tab.press("Enter", "\r")


def open_page(tab: Tab, server: Server, *, token: bool = True) -> None:
    # The page is loaded when its script has run; a fragment alone would not load it again.
    tab.open(f"{server.address}/" + (f"#token={server.token}" if token else ""), width=800)
    if token:
        tab.wait_until(f"{STATE} === 'Ready'")


@pytest.fixture
def page(server: Server) -> Iterator[Tab]:
    """The page in a browser of its own."""
    with open_tab() as tab:
        open_page(tab, server)
        yield tab


@pytest.mark.slow
def test_unsent_message_returns_after_reload(page, server):
    page.evaluate(
        "window.fetch = () => new Promise(() => {}), true"
    )  # the server has not answered yet
    type_prompt(page, "say it again")
    assert page.evaluate("document.getElementById('prompt').value") == ""
    page.open("about:blank", width=800)
    open_page(page, server)
    assert page.evaluate("document.getElementById('prompt').value") == "say it again"
    page.press("Enter", "\r")
    page.wait_until(f"{ANSWER} === 'it again' && {STATE} === 'Ready'")
    page.open("about:blank", width=800)
    open_page(page, server)
    page.wait_until(f"{ANSWER} === 'it again'")
    assert page.evaluate("document.getElementById('prompt').value") == ""


@pytest.mark.slow
def test_page_runs_whole_conversation(server, workdir):
    with open_tab() as tab:
        open_page(tab, server, token=False)
        tab.wait_until(f"{STATE} === 'A token is needed'")
        tab.send("Input.insertText", text=server.token)
        tab.press("Enter", "\r")
        tab.wait_until(f"{STATE} === 'Ready'")
        tab.problems.clear()  # the refused request

        tab.open("about:blank", width=800)
        open_page(tab, server)
        assert (
            tab.evaluate("location.href") == f"{server.address}/"
        )  # the token does not stay in the address

        type_prompt(tab, "say <img src=x onerror=alert(1)> <script>alert(1)</script> one two")
        tab.wait_until(f"{ANSWER}?.endsWith('one two')")
        assert (
            tab.evaluate(ANSWER) == "<img src=x onerror=alert(1)> <script>alert(1)</script> one two"
        )
        assert tab.evaluate("document.images.length + document.scripts.length") == 2
        tab.wait_until(f"{STATE} === 'Ready'")

        told = {
            "type": "compaction",
            "tier": "summary",
            "before_tokens": 900,
            "after_tokens": 400,
            "summary": "<b>so</b>",
        }
        tab.evaluate(f"show({json.dumps(told)}), true")
        card = "document.querySelector('#log > :last-child details').innerText"
        assert tab.evaluate(card).startswith("Context compacted (summary): 900 → 400 tokens")
        assert (
            tab.evaluate("document.querySelector('#log > :last-child pre').textContent")
            == "<b>so</b>"
        )

        edit = {
            "question": "q",
            "prompt": "May it?",
            "options": ["Deny"],
            "diff": ["@@ -1 +1 @@", "-<b>a</b>", "+c"],
        }
        tab.evaluate(f"ask({json.dumps(edit)}), true")
        lines = "[...document.querySelectorAll('#question-q .diff span')].map((line) => [line.className, line.textContent])"
        assert tab.evaluate(lines) == [
            ["at", "@@ -1 +1 @@"],
            ["remove", "-<b>a</b>"],
            ["add", "+c"],
        ]
        tab.evaluate("unask('q'), true")

        type_prompt(tab, call("risky", path=str(workdir / "trace")))
        tab.wait_until("document.querySelectorAll('#questions button').length === 3")
        assert tab.evaluate("document.activeElement.textContent") == "Deny"
        assert "May risky touch trace?" in tab.evaluate(
            "document.querySelector('#questions p').textContent"
        )
        assert not (workdir / "trace").exists()
        tab.evaluate("[...document.querySelectorAll('#questions button')][0].click()")
        tab.wait_until(f"{ANSWER}?.startsWith('done: it was done')")
        assert (workdir / "trace").exists()
        assert tab.evaluate("document.querySelectorAll('#questions button').length") == 0
        assert (
            tab.evaluate(
                "[...document.querySelectorAll('details')].map((d) => [d.open, d.innerText]).at(-1)"
            )[0]
            is False
        )
        assert re.fullmatch(
            rf"risky done \(\d+\.\d s\) {re.escape(str(workdir / 'trace'))}",
            tab.evaluate("[...document.querySelectorAll('.tool summary')].at(-1).innerText"),
        )
        tab.wait_until(f"{STATE} === 'Ready'")

        type_prompt(tab, "hang")
        tab.wait_until(f"{ANSWER} === 'hanging'")
        tab.open(f"{server.address}/", width=800)
        tab.wait_until(f"{STATE} === 'The agent is working' && {ANSWER} === 'hanging'")
        tab.press("Escape")
        tab.wait_until(f"{STATE} === 'Ready'")
        assert (
            tab.evaluate("document.getElementById('log').lastElementChild.textContent")
            == "Stopped."
        )

        tab.open(f"{server.address}/", width=800)
        tab.wait_until(f"{STATE} === 'Ready' && document.querySelectorAll('.user').length === 3")
        assert tab.problems == []


@pytest.mark.slow
def test_page_is_accessible_without_mouse(page):
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in nodes
        if "role" in node
    }
    for expected in [
        ("textbox", "Message"),
        ("button", "Send"),
        ("button", "Stop"),
        ("button", "New conversation"),
        ("log", "Conversation"),
        ("heading", "Amplifier"),
    ]:
        assert expected in named
    assert "status" in {role for role, _ in named}
    assert not [role for role, name in named if role in ("button", "textbox") and not name]
    order = []
    page.evaluate("document.getElementById('search').focus()")
    page.evaluate("document.getElementById('conversations').replaceChildren()")
    for _ in range(7):
        page.press("Tab")
        order.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    beside = ["tool-count", "Sessions of other folders", "Conformance reports"]
    assert order == [*beside, "log", "prompt", "send", "attach"]


def serious_findings(tab: Tab) -> list[Any]:
    """What axe finds on the page as it is."""
    tab.evaluate(Path(node_parts.program("axe-core", "axe.min.js")).read_text() + "; 0")
    found = tab.evaluate(
        "axe.run().then((found) => found.violations.map((each) => [each.impact, each.id, each.nodes.map((node) => node.html)]))"
    )
    return [each for each in found if each[0] in ("serious", "critical")]


ATTACKS = (
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt&colon;alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "![a](javascript:alert(1))",
    "![a](https://e.example/track.png)",
    "<svg onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "[a]: javascript:alert(1)\n\n[a]",
    "```html\n<script>alert(1)</script>\n```",
    '```"><script>alert(1)</script>\nx\n```',
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>*{display:none}</style>",
    "[^1]\n\n[^1]: <img src=x onerror=alert(1)>",
    "<form action=https://e.example><button>x</button></form>",
)


@pytest.mark.slow
def test_markdown_is_rendered_inertly(page, server):
    page.send("Network.enable")
    type_prompt(
        page,
        "say # Title\n\n**bold** `code`\nnext\n\n| a |\n|---|\n| 1 |\n\n```python\ndef f(): pass\n```\n",
    )
    page.wait_until(
        f"{STATE} === 'Ready' && document.querySelector('.agent .hljs-keyword') !== null"
    )
    counts = "['h1', 'strong', 'table', 'pre', 'br', '.copy'].map((each) => document.querySelectorAll(`.agent ${each}`).length)"
    assert page.evaluate(counts) == [1, 1, 1, 1, 1, 2]
    assert serious_findings(page) == []
    page.evaluate("window.alert = () => { window.attacked = true; }")
    for number, attack in enumerate(ATTACKS, 2):
        type_prompt(page, f"say {attack}")
        page.wait_until(
            f"{STATE} === 'Ready' && document.querySelectorAll('.agent .actions').length === {number}"
        )
    elements = "[...document.querySelectorAll('.text *')].map((each) => each.tagName.toLowerCase())"
    assert not set(page.evaluate(elements)) & {
        "img",
        "script",
        "svg",
        "iframe",
        "style",
        "form",
        "object",
        "embed",
    }
    links = (
        "[...document.querySelectorAll('.text a')].map((each) => each.getAttribute('href') ?? '')"
    )
    assert all(
        link.startswith(("http", "#", "mailto:")) or not link for link in page.evaluate(links)
    )
    handlers = "[...document.querySelectorAll('.text *')].flatMap((each) => each.getAttributeNames()).filter((each) => each.startsWith('on') || each === 'style')"
    assert page.evaluate(handlers) == []
    assert page.evaluate("window.attacked === undefined")
    assert all(address.startswith(server.address) for address in page.requests)
    assert page.problems == []


@pytest.mark.slow
def test_conversations_can_be_managed(page):
    titles = "[...document.querySelectorAll('#conversations li > button')].map((each) => each.textContent)"
    before = page.evaluate(titles)
    for prompt in ("say listed first", "say listed second"):
        page.evaluate("document.getElementById('new').click()")
        type_prompt(page, prompt)
        page.wait_until(f"{STATE} === 'Ready' && ({titles}).includes({prompt!r})")
    assert page.evaluate(titles) == ["say listed second", "say listed first", *before]
    page.evaluate("document.getElementById('search').focus()")
    page.send("Input.insertText", text="FIRST")
    assert "say listed second" not in page.evaluate(titles)
    page.evaluate("document.querySelector('#conversations li > button').click()")
    page.wait_until(
        f"{ANSWER} === 'listed first' && document.querySelector('#conversations .current') !== null"
    )
    page.evaluate("document.querySelector('#conversations .current .buttons button').click()")
    page.evaluate("document.activeElement.select()")
    page.send("Input.insertText", text="listed first, renamed")
    page.press("Enter", "\r")
    page.wait_until(f"({titles}).includes('listed first, renamed')")
    page.evaluate("document.querySelectorAll('#conversations .current .buttons button')[1].click()")
    page.wait_until(
        f"({titles}).includes('say listed first (copy)') && {ANSWER} === 'listed first'"
    )
    assert serious_findings(page) == []
    page.evaluate("document.querySelectorAll('#conversations .current .buttons button')[2].click()")
    assert page.evaluate("document.activeElement.textContent") == "Keep"
    page.evaluate("document.activeElement.previousSibling.click()")
    page.wait_until(
        f"!({titles}).includes('say listed first (copy)') && document.querySelectorAll('.agent').length === 0"
    )
    assert page.problems == []


@pytest.mark.slow
def test_page_leads_to_all_other_pages(server, workdir):
    store = SessionStore(server.home / "sessions")
    other = SessionRecord(
        session_id="elsewhere", title="<i>far</i> away", directory=str(workdir), status="completed"
    )
    store.write(other)
    store.folder("elsewhere").mkdir(exist_ok=True)
    (store.folder("elsewhere") / "events.jsonl").write_bytes(b"".join(small_session()))
    checked = run_cli("module", "validate", "tool-todo", "--static", home=server.home, cwd=workdir)
    assert checked.returncode == 0
    store.keep_report("broken-tool", "violations", "T1 <b>it raised</b>")
    with open_tab() as tab:
        open_page(tab, server)
        type_prompt(tab, "say traced words")
        tab.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'traced words'")
        tab.evaluate(
            "document.querySelectorAll('nav details').forEach((each) => { each.open = true; })"
        )
        tools = tab.evaluate(
            "[...document.querySelectorAll('#tool-list strong')].map((each) => each.textContent)"
        )
        assert "risky" in tools
        assert (
            tab.evaluate("document.getElementById('tool-count').textContent")
            == f"Tools ({len(tools)})"
        )
        reports = tab.evaluate(
            "[...document.querySelectorAll('#reports summary')].map((each) => each.textContent)"
        )
        assert reports == ["broken-tool: violations", "tool-todo: conforms"]
        assert (
            tab.evaluate("document.querySelector('#reports pre').textContent")
            == "T1 <b>it raised</b>"
        )
        far = "document.querySelector('#elsewhere a')"
        assert tab.evaluate(f"{far}.textContent") == "<i>far</i> away"
        assert tab.evaluate(f"{far}.rel + {far}.target") == "noopener_blank"
        assert serious_findings(tab) == []
        near = tab.evaluate("document.querySelector('#conversations .current a').href")
        for address, wanted in (
            (
                near,
                "document.getElementById('notes').textContent.includes('hooks-logging')",
            ),  # the plan has none
            (tab.evaluate(f"{far}.href"), "document.querySelectorAll('.row.model').length === 2"),
        ):
            tab.open("about:blank", width=800)
            tab.open(address, width=1280)
            tab.wait_until(wanted)
            assert (
                tab.evaluate("location.href") == f"{server.address}/trace"
            )  # neither token nor session stay in it
        assert tab.problems == []


@pytest.mark.slow
def test_message_is_retried_edited_and_attached(page):
    prompts = "[...document.querySelectorAll('.user .text')].map((each) => each.textContent)"
    for number in (1, 2):
        type_prompt(page, "history")
        page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === '{number} prompts so far'")
    page.evaluate("document.querySelectorAll('.user')[1].dataset.old = 'yes'")
    page.evaluate("document.querySelectorAll('.user')[1].querySelectorAll('button')[1].click()")
    again = "document.querySelector('[data-old]') === null && document.querySelectorAll('.agent .actions').length === 2"
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === '2 prompts so far' && {again}")
    page.evaluate("document.querySelectorAll('.user')[0].querySelectorAll('button')[0].click()")
    assert page.evaluate("document.activeElement.value") == "history"
    page.evaluate("document.activeElement.select()")
    type_prompt(page, "say edited")
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'edited'")
    assert page.evaluate(prompts) == ["say edited"]
    type_prompt(page, "history")
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === '2 prompts so far'")
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    data = f"Uint8Array.from(atob('{pixel}'), (each) => each.charCodeAt(0))"
    page.evaluate(f"attach([new File([{data}], 'pixel.png', {{ type: 'image/png' }})])")
    page.wait_until("document.querySelectorAll('#attached button').length === 1")
    type_prompt(page, "blocks")
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'text image'")
    assert page.evaluate("document.querySelectorAll('#attached button').length") == 0
    assert page.problems == []


@pytest.mark.slow
def test_tool_calls_show_arguments_time_and_outcome(page, workdir):
    summary = "[...document.querySelectorAll('.tool summary')].at(-1)?.innerText"
    type_prompt(page, call("crash"))
    page.wait_until(
        f"{STATE} === 'Ready' && /^crash failed \\(\\d+\\.\\d s\\)$/.test({summary}.trim())"
    )
    type_prompt(page, call("risky", path=str(workdir / "trace")))
    page.wait_until(f"{summary}?.startsWith('risky waits for your permission')")
    assert serious_findings(page) == []
    page.press("Enter", "\r")  # Deny has the focus
    page.wait_until(f"{STATE} === 'Ready' && {summary}.startsWith('risky not allowed (')")
    type_prompt(page, call("wait_for", path=str(workdir / "never")))
    page.wait_until(f"{summary}?.startsWith('wait_for running')")
    page.press("Escape")
    page.wait_until(f"{STATE} === 'Ready' && {summary}.startsWith('wait_for stopped')")
    assert "crash" in page.evaluate("document.querySelector('.tool').textContent")
    assert page.problems == []


@pytest.mark.slow
def test_reopened_conversation_shows_call_outcomes(page):
    results = {
        "a": "Error: denied: not in this mode",
        "b": "Error: not started: the turn is being stopped",
        "c": "Error: there is no tool 'c'",
        "d": "[interrupted: the turn ended]",
        "e": "fine",
    }
    calls = [{"id": name, "name": name, "arguments": {}} for name in results]
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": calls}]
    messages += [
        {"role": "tool", "tool_call_id": name, "content": text} for name, text in results.items()
    ]
    page.evaluate(f"showAll({json.dumps(messages)})")
    shown = page.evaluate(
        "[...document.querySelectorAll('#log .tool .status')].map((each) => each.textContent.trim())"
    )
    assert shown == ["not allowed", "stopped", "failed", "stopped", "done"]


@pytest.mark.slow
def test_restarted_server_gets_new_token(backend, home, workdir, plan):
    with open_tab() as tab:
        with running(backend, plan, home, workdir) as server:
            open_page(tab, server)
            type_prompt(tab, "say before")
            tab.wait_until(f"{ANSWER} === 'before' && {STATE} === 'Ready'")
            port = str(server.port)
        with running(backend, plan, home, workdir, "--port", port) as again:
            tab.wait_until(f"{STATE} === 'A token is needed'")
            tab.evaluate("document.getElementById('token').focus()")
            tab.send("Input.insertText", text=again.token)
            tab.press("Enter", "\r")
            tab.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'before'")
            type_prompt(tab, "say after")
            tab.wait_until(f"{ANSWER} === 'after'")


@pytest.mark.slow
def test_phone_and_long_conversation(page, server):
    type_prompt(page, "say on the phone")
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'on the phone'")
    page.open(f"{server.address}/", width=390)
    page.wait_until(f"{STATE} === 'Ready' && {ANSWER} === 'on the phone'")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert serious_findings(page) == []
    page.evaluate("document.getElementById('menu').click()")
    assert (
        page.evaluate(
            "document.querySelector('#conversations .current').getBoundingClientRect().width"
        )
        > 300
    )
    assert serious_findings(page) == []
    page.evaluate("document.getElementById('menu').click()")
    message = "{ role: n % 2 ? 'assistant' : 'user', content: `**message** ${n}` }"
    page.evaluate(f"showAll(Array.from({{ length: 1000 }}, (_, n) => ({message})))")
    assert page.evaluate("document.querySelectorAll('#log strong').length") == 500
    below = "log.scrollHeight - log.scrollTop - log.clientHeight"
    assert page.evaluate(below) < 2
    page.evaluate("log.scrollTop = 0; show({ type: 'text', text: 'more' })")
    assert page.evaluate("log.scrollTop") == 0  # who reads above is left there


@pytest.mark.slow
def test_bundled_libraries_match_lock_file(tmp_path):
    sources, built = tmp_path / "page", tmp_path / "built"
    sources.mkdir()
    for name in ("package.json", "package-lock.json", "markdown.js", "build.mjs"):
        shutil.copy(ROOT / "page" / name, sources)
    node_parts.build_page(sources, built)
    committed = ROOT / "src" / "amplifier" / "servers" / "http" / "chat_page"
    for name in ("markdown.js", "markdown.licences.txt"):
        assert (built / name).read_bytes() == (committed / name).read_bytes()
    assert "://" not in "".join(
        line
        for line in (ROOT / "page" / "package-lock.json").read_text().splitlines()
        if "resolved" in line
    )
