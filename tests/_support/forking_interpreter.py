"""The interpreter that `forked.py` forks programs from; the only argument is its end of the socket."""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from contextlib import suppress
from typing import Any, NoReturn


def import_everything() -> None:
    """What the command line, the modules that come with it and both backends consist of."""
    for name in (
        "anyio._backends._asyncio",
        "anyio._backends._trio",
        "platformdirs",
        "amplifier.cli",
        "amplifier.modules",
    ):
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            with suppress(ImportError):  # an optional part is not installed
                importlib.import_module(found.name)
    # Both keep what they have read, as long as the files are the same.
    importlib.import_module("amplifier._internal.json.redaction").redact_text("password=1")
    importlib.import_module("amplifier.loading.loader").installed_ids()
    gc.freeze()


def next_program() -> Any:
    """Serve requests; returns in each program that was forked, with its request."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    report(running.pop(pid), status)
        if requests.fileno() not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(requests, 8, 4)
        if not head:
            sys.exit(0)
        missing, parts = int.from_bytes(head, "big"), []
        while missing:
            parts.append(requests.recv(missing))
            missing -= len(parts[-1])
        if "amplifier" not in sys.modules:
            import_everything()
        *streams, reports = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            requests.detach()
            os.closerange(3, 256)
            return json.loads(b"".join(parts))
        for stream in streams:
            os.close(stream)
        running[pid] = reports
        os.write(reports, b"%d\n" % pid)


def report(descriptor: int, status: int) -> None:
    """Tell how a program has ended."""
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(descriptor, b"%d\n" % status)
    os.close(descriptor)


def become(request: Any) -> tuple[str, list[str]]:
    """Take over what an interpreter has from its start; returns the program's words."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    first, *words = request["words"]
    path = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    where = {"-c": "", "-m": os.getcwd()}.get(first, os.path.dirname(os.path.abspath(first)))
    sys.path[:] = [where, *path, *(entry for entry in sys.path[1:] if entry not in own)]
    importlib.invalidate_caches()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        buffering = 1 if number == 2 or os.isatty(number) else -1
        stream = open(  # noqa: SIM115
            number, "r" if number == 0 else "w", buffering, "utf-8", errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return first, words


def run(first: str, words: list[str]) -> None:
    """Run the program as an interpreter runs its main module."""
    if first == "-c":
        main = types.ModuleType("__main__")
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = main
        exec(compile(words[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")


def end(status: int) -> NoReturn:
    """End as an interpreter does, but leave every module to the system: taking down all that was imported costs more than a short program."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except OSError:
                sys.exit(status)  # which tells of it
    os._exit(status)


program = next_program()
try:
    run(*become(program))
except SystemExit as left:
    if left.code is not None and not isinstance(left.code, int):
        raise
    end((left.code or 0) & 0xFF)
end(0)
