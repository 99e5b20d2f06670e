"""A small MCP server on standard streams, in the standard library alone, so that it starts within a moment.

    small_server.py [OPTION…]

    --ignore-term          survive SIGTERM and the end of input
    --child                start a child process that keeps the output open
    --escapee              start one in a session of its own, which ignores SIGTERM; its command line has the server's name
    --garbage              print a banner before the first message
    --silent               answer nothing
    --version=V            state this protocol version
    --tools=JSON           list these tools beside the others
    --tools-file=FILE      the same, from a file; a call of one returns what it has as "structured"
    --more-tools=JSON      what the tool more_tools adds, in place of its own
    --first-tools=JSON     list these before the others, as they are
    --answers-file=FILE    answer these methods with these results, in JSON as it is
    --flood=N              send so many list_changed before the answer to each call; that to echo is how often tools were listed since
    --exit                 end at once with exit code 3
    --name=N               the server's name
    --instructions=TEXT    how to use it
    --pages                a second page of prompts and templates

It speaks the handshake of 2025-11-25 and runs each call in a thread of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

OPTIONS = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:]}

# By method or tool, as texts.
RAW: dict[str, str] = {}
if "--answers-file" in OPTIONS:
    with open(OPTIONS["--answers-file"], encoding="utf-8") as answers:
        RAW = json.load(answers)
FIRST_TOOLS = json.loads(OPTIONS.get("--first-tools", "[]"))

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
NOTE = {
    "type": "object",
    "properties": {"note": {"type": "string", "description": "A file to append to."}},
    "additionalProperties": False,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled: dict[Any, threading.Event] = {}
        self._answers: dict[Any, Any] = {}
        self._answered = threading.Condition()
        self._next = 0
        self.listed = 0
        self.tools: dict[str, dict[str, Any]] = {
            "echo": {
                "description": "Return the text.",
                "inputSchema": TEXT,
                "annotations": {"readOnlyHint": True},
            },
            "upper": {"description": "Return the text in capitals.", "inputSchema": TEXT},
        }
        if "--all" in OPTIONS:
            for name in (
                "hang",
                "progress",
                "image",
                "big",
                "crash",
                "more_tools",
                "roots",
                "sample",
                "elicit",
                "sample_later",
            ):
                self.tools[name] = {
                    "description": f"Does {name}.",
                    "inputSchema": {"type": "object"},
                }
            self.tools["erase"] = {
                "description": "Erase it.",
                "inputSchema": NOTHING,
                "annotations": {"destructiveHint": True},
            }
        self.structured: dict[str, Any] = {}
        added = json.loads(OPTIONS.get("--tools", "[]"))
        if "--tools-file" in OPTIONS:
            with open(OPTIONS["--tools-file"], encoding="utf-8") as file:
                added += json.load(file)
        for tool in added:
            self.structured[tool["name"]] = tool.pop("structured", {})
            self.tools[tool["name"]] = tool

    # ── messages ──

    def send(self, message: dict[str, Any]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message})
        with self._lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def send_raw(self, number: Any, result: str) -> None:
        """Send a result that json.dumps() would not write, such as one that is nested too deeply for it."""
        with self._lock:
            sys.stdout.write(
                f'{{"jsonrpc": "2.0", "id": {json.dumps(number)}, "result": {result}}}\n'
            )
            sys.stdout.flush()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the client and wait for its answer."""
        with self._answered:
            self._next += 1
            number = f"server-{self._next}"
        self.send({"id": number, "method": method, "params": params})
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers)
            return self._answers.pop(number)

    def take(self, message: dict[str, Any]) -> None:
        method, number = message.get("method"), message.get("id")
        if method is None:
            with self._answered:
                self._answers[number] = message.get("result") or {"error": message.get("error")}
                self._answered.notify_all()
        elif method == "initialize":
            version = OPTIONS.get("--version") or message["params"]["protocolVersion"]
            able = (
                {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
                if "--all" in OPTIONS
                else {"tools": {}}
            )
            info = {"name": OPTIONS.get("--name") or "small", "version": "1"}
            result = {"protocolVersion": version, "capabilities": able, "serverInfo": info}
            self.send(
                {
                    "id": number,
                    "result": {**result, "instructions": OPTIONS.get("--instructions", "")},
                }
            )
        elif method == "notifications/cancelled":
            self._cancelled.setdefault(message["params"]["requestId"], threading.Event()).set()
        elif method == "tools/call":
            threading.Thread(
                target=self._call, args=(number, message["params"]), daemon=True
            ).start()
        elif number is not None:
            self._answer(number, method, message.get("params") or {})

    def _answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        self.listed += method == "tools/list"
        results: dict[str, Any] = {
            "tools/list": {
                "tools": [
                    *FIRST_TOOLS,
                    *({"name": name, **tool} for name, tool in self.tools.items()),
                ]
            },
            "resources/list": {
                "resources": [{"uri": "note://one", "name": "one", "description": "The first."}]
            },
            "resources/templates/list": {
                "resourceTemplates": [{"uriTemplate": "note://{id}", "name": "note"}]
            },
            "resources/read": {
                "contents": [
                    {"uri": params.get("uri", ""), "text": f"content of {params.get('uri')}"}
                ]
            },
            "prompts/list": {
                "prompts": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}]
            },
            "prompts/get": {
                "messages": [
                    {
                        "role": "user",
                        "content": {
                            "type": "text",
                            "text": f"Greet {params.get('arguments', {}).get('who')}.",
                        },
                    }
                ]
            },
            "ping": {},
        }
        if method in RAW:
            self.send_raw(number, RAW[method])
        elif "--pages" in OPTIONS and method in ("prompts/list", "resources/templates/list"):
            page = int(params.get("cursor") or 1)
            (name, first), *_ = results[method].items()
            listed = [{**item, "name": f"{item['name']}-{page}"} for item in first]
            self.send(
                {
                    "id": number,
                    "result": {name: listed, **({"nextCursor": "2"} if page == 1 else {})},
                }
            )
        elif method in results:
            self.send({"id": number, "result": results[method]})
        else:
            self.send({"id": number, "error": {"code": -32601, "message": f"no method {method}"}})

    # ── tools ──

    def _call(self, number: Any, params: dict[str, Any]) -> None:
        given = params.get("arguments") or {}
        token = params.get("_meta", {}).get("progressToken")
        stop = self._cancelled.setdefault(number, threading.Event())
        for _ in range(int(OPTIONS.get("--flood", "0"))):
            self.send({"method": "notifications/tools/list_changed"})
        if params["name"] in RAW:
            self.send_raw(number, RAW[params["name"]])
            return
        try:
            content, failed = self._run(params["name"], given, token, stop), False
        except Exception as error:
            content, failed = f"{type(error).__name__}: {error}", True
        if not stop.is_set():
            blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
            more = (
                {"structuredContent": self.structured[params["name"]]}
                if self.structured.get(params["name"])
                else {}
            )
            self.send({"id": number, "result": {"content": blocks, "isError": failed, **more}})

    def _run(self, name: str, given: dict[str, Any], token: Any, stop: threading.Event) -> Any:
        if name not in self.tools:
            raise ValueError(f"there is no tool {name}")
        if name == "hang":
            note(given, "begun")
            stop.wait()
            note(given, "cancelled")
        elif name == "progress":
            for step in (1, 2, 3):
                about = {
                    "progressToken": token,
                    "progress": step,
                    "total": 3,
                    "message": f"step {step}",
                }
                self.send({"method": "notifications/progress", "params": about})
        elif name == "image":
            return [
                {"type": "text", "text": "a pixel"},
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
                {"type": "resource_link", "uri": "note://one", "name": "one"},
            ]
        elif name == "echo" and "--flood" in OPTIONS:
            return str(self.listed)
        elif name == "big":
            return "x" * int(given["size"])
        elif name == "crash":
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "more_tools":
            self.tools.pop("upper", None)
            self.tools["lower"] = {
                "description": "Return the text in small letters.",
                "inputSchema": TEXT,
            }
            for tool in json.loads(OPTIONS.get("--more-tools", "[]")):
                self.tools[tool["name"]] = tool
            self.send({"method": "notifications/tools/list_changed"})
        elif name == "roots":
            return json.dumps(self.ask("roots/list", {}))
        elif name == "sample":
            message = {
                "role": "user",
                "content": {"type": "text", "text": "What is six times seven?"},
            }
            return json.dumps(
                self.ask("sampling/createMessage", {"messages": [message], "maxTokens": 50})
            )
        elif name == "sample_later":
            threading.Timer(0.2, self._run, ("sample", {}, None, stop)).start()
        elif name == "elicit":
            return json.dumps(self.ask("elicitation/create", given))
        elif name == "log":
            for level, data in (("info", given["text"]), ("error", {"code": 7})):
                about = {"level": level, "logger": "small", "data": data}
                self.send({"method": "notifications/message", "params": about})
        elif name == "upper":
            return given["text"].upper()
        elif name == "lower":
            return given["text"].lower()
        elif name == "echo":
            return given["text"]
        return "done"


def note(given: dict[str, Any], line: str) -> None:
    if given.get("note"):
        with open(given["note"], "a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    if "--exit" in OPTIONS:
        print("no licence found; token=abcdef0123456789abcdef", file=sys.stderr)
        sys.exit(3)
    if "--ignore-term" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--child" in OPTIONS:
        subprocess.Popen([sys.executable, "-SEc", "import time; time.sleep(600)"])
    if "--escapee" in OPTIONS:
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen(
            [sys.executable, "-SEc", code, OPTIONS.get("--name", "")], start_new_session=True
        )
    if "--garbage" in OPTIONS:
        print("Welcome to the small server!", flush=True)
    server = Server()
    for line in sys.stdin:
        if "--silent" not in OPTIONS:
            server.take(json.loads(line))
    while "--ignore-term" in OPTIONS:
        time.sleep(1)


main()
