"""The program of the process that runs the model; `local` starts it as a script, and no module imports it.

It is a separate process, so that a model that crashes, hangs or exhausts the memory does not affect the session, and so that
it can be killed. It reads one JSON line of parameters, writes one JSON line with its address or an error, and runs until
its standard input ends: that is when its parent closes it, dies, or is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

_LOADING = "error loading model:"
_LOOKS = 20
_SECONDS_BETWEEN_LOOKS = 0.05
_MOST_BYTES = 1_000_000


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb", 0)
    log = tempfile.TemporaryFile()  # noqa: SIM115 - ends with the process
    os.dup2(log.fileno(), 2)
    os.dup2(2, 1)  # the library's output must not mix with the answer
    job = json.loads(sys.stdin.buffer.readline())
    watcher = threading.Thread(target=_end_with_parent, daemon=True)
    watcher.start()
    try:
        server = _serve(job)
        answer: dict[str, Any] = {"address": server.listening_address}
    except Exception as error:  # noqa: BLE001 - the parent needs every error of the library
        answer = {"error": _reason(log.fileno()) or str(error) or type(error).__name__}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    answers.write(json.dumps(answer).encode() + b"\n")
    if "error" in answer:
        os._exit(1)
    watcher.join()


def _serve(job: dict[str, Any]) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")  # here, so that a failing import is reported to the parent
    params = xllamacpp.CommonParams()
    params.model.path = job["model_path"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [job["key"]]
    params.n_ctx = job["context_size"] * job["parallel"]
    params.n_parallel = job["parallel"]
    params.verbosity = 1
    params.ui = False
    params.warmup = False
    if job["threads"] is not None:
        params.cpuparams.n_threads = job["threads"]
        params.cpuparams_batch.n_threads = job["threads"]
    if job["gpu_layers"] is not None:
        params.n_gpu_layers = job["gpu_layers"]
    return xllamacpp.Server(params)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # at once, also in the middle of a response


def _reason(log: int) -> str:
    """The most informative line of the log; a thread of the library writes it, maybe after the error was raised."""
    lines: list[str] = []
    for _ in range(_LOOKS):
        # The library writes where the descriptor's position is, so it must not be moved.
        text = os.pread(log, _MOST_BYTES, 0).decode("utf-8", "replace")
        lines = [line.partition(" E ")[2] for line in text.splitlines() if " E " in line]
        for line in lines:
            if _LOADING in line:
                return line.partition(_LOADING)[2].strip()
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return lines[0].strip() if lines else ""


if __name__ == "__main__":
    main()
