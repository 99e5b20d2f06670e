"""Replaces the process that runs a model: same protocol, answers from a script, so that every byte can be chosen.

Started as a script in place of provider-local's own. The "model file" is the script: after the letters ``GGUF`` comes JSON
with ``start`` (``ok``, ``error``, ``die``, ``silent``) and ``replies``, played one for each request: ``status``, ``lines`` of
the body, and ``then``: ``end``, ``stall`` or ``die``; ``silent`` sends nothing. What was asked is in a file beside it, one JSON line for each.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())
    path = Path(job["model_path"])
    script = json.loads(path.read_bytes()[4:])
    watcher = threading.Thread(target=_end_with_parent)
    watcher.start()
    start = script.get("start", "ok")
    if start == "die":
        os._exit(3)
    if start == "error":
        print(json.dumps({"error": "it is no model"}), flush=True)
        os._exit(1)
    if start == "silent":
        return
    replies = iter(script["replies"])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with path.with_suffix(".asked").open("a") as asked:
                asked.write(json.dumps({"key": self.headers["Authorization"], "body": body}) + "\n")
            self._play(next(replies, {"status": 500, "lines": ['{"error": {"message": "script over"}}']}))

        def _play(self, reply: dict[str, Any]) -> None:
            if reply.get("silent"):
                threading.Event().wait()
            self.send_response(reply.get("status", 200))
            self.end_headers()
            for line in reply.get("lines", ()):
                self.wfile.write(line.encode() + b"\n\n")
                self.wfile.flush()
            if reply.get("then") == "stall":
                threading.Event().wait()
            if reply.get("then") == "die":
                os._exit(9)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(json.dumps({"address": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
