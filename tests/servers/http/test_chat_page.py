"""The chat page in a real browser, served by `amplifier serve` on both backends."""

from __future__ import annotations

import json

import pytest

from tests._support.browser import Tab, open_tab
from tests.servers.http._server import Server

ANSWER = "[...document.querySelectorAll('#log .agent .text')].at(-1)?.textContent"
STATE = "document.getElementById('state').textContent"


def call(tool: str, **given: object) -> str:
    return f"call {tool} {json.dumps(given)}"


def wait_until(tab: Tab, condition: str) -> None:
    """Wait in the page until a JavaScript expression is true."""
    tab.evaluate(
        "new Promise((done) => { const look = () => "
        f"({condition}) ? done(true) : setTimeout(look, 10); look(); }}).then(() => true)"
    )


def press(tab: Tab, key: str, text: str | None = None) -> None:
    codes = {"Enter": 13, "Escape": 27, "Tab": 9}
    common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], **({"text": text} if text else {})}
    tab.send("Input.dispatchKeyEvent", type="keyDown", **common)
    tab.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)


def type_prompt(tab: Tab, prompt: str) -> None:
    tab.evaluate("document.getElementById('prompt').focus()")
    tab.send("Input.insertText", text=prompt)
    press(tab, "Enter", "\r")


def open_page(tab: Tab, server: Server, *, token: bool = True) -> None:
    # The page is loaded when its script has run; a fragment alone would not load it again.
    tab.open(f"{server.address}/" + (f"#token={server.token}" if token else ""), width=800)
    if token:
        wait_until(tab, f"{STATE} === 'Ready'")


@pytest.mark.slow
def test_page_asks_for_the_token_sends_streams_asks_stops_and_reconnects(server, workdir):
    with open_tab() as tab:
        open_page(tab, server, token=False)
        wait_until(tab, f"{STATE} === 'A token is needed'")
        tab.send("Input.insertText", text=server.token)
        press(tab, "Enter", "\r")
        wait_until(tab, f"{STATE} === 'Ready'")
        tab.problems.clear()  # the refused request

        tab.open("about:blank", width=800)
        open_page(tab, server)
        assert tab.evaluate("location.href") == f"{server.address}/"  # the token does not stay in the address

        type_prompt(tab, "say <img src=x onerror=alert(1)> <script>alert(1)</script> one two")
        wait_until(tab, f"{ANSWER}?.endsWith('one two ')")
        assert tab.evaluate(ANSWER) == "<img src=x onerror=alert(1)> <script>alert(1)</script> one two "
        assert tab.evaluate("document.images.length + document.scripts.length") == 1
        wait_until(tab, f"{STATE} === 'Ready'")

        type_prompt(tab, call("risky", path=str(workdir / "trace")))
        wait_until(tab, "document.querySelectorAll('#questions button').length === 3")
        assert tab.evaluate("document.activeElement.textContent") == "Deny"
        assert "May risky touch trace?" in tab.evaluate("document.querySelector('#questions p').textContent")
        assert not (workdir / "trace").exists()
        tab.evaluate("[...document.querySelectorAll('#questions button')][0].click()")
        wait_until(tab, f"{ANSWER}?.startsWith('done: it was done')")
        assert (workdir / "trace").exists()
        assert tab.evaluate("document.querySelectorAll('#questions button').length") == 0
        assert tab.evaluate("[...document.querySelectorAll('details')].map((d) => [d.open, d.innerText]).at(-1)") == [
            False,
            "risky: done",
        ]
        wait_until(tab, f"{STATE} === 'Ready'")

        type_prompt(tab, "hang")
        wait_until(tab, f"{ANSWER} === 'hanging '")
        tab.open(f"{server.address}/", width=800)
        wait_until(tab, f"{STATE} === 'The agent is working' && {ANSWER} === 'hanging '")
        press(tab, "Escape")
        wait_until(tab, f"{STATE} === 'Ready'")
        assert tab.evaluate("document.getElementById('log').lastElementChild.textContent") == "Stopped."

        tab.open(f"{server.address}/", width=800)
        wait_until(tab, f"{STATE} === 'Ready' && document.querySelectorAll('.user').length === 3")
        assert tab.problems == []


@pytest.mark.slow
def test_page_can_be_used_without_a_mouse_and_by_a_screen_reader(server):
    with open_tab() as tab:
        open_page(tab, server)
        nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
        named = {(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if "role" in node}
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
        tab.evaluate("document.getElementById('new').focus()")
        for _ in range(3):
            press(tab, "Tab")
            order.append(tab.evaluate("document.activeElement.id"))
        assert order == ["log", "prompt", "send"]
