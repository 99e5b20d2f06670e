"""Commands that try to get out of the sandbox of tool-bash, and a place where it shows whether they do; docs/how-to/confine-commands.md sums up."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from amplifier.models import ToolResult
from amplifier.modules.tools import bash as tool_bash
from amplifier.testing import TestCoordinator
from tests._support.processes import running_processes
from tests._support.tree import ROOT

KINDS = ("bwrap", "off")
LIMITS = {"max_memory_mb": 256, "max_processes": 40, "max_file_mb": 8}

_PTRACE = "import ctypes, os, sys; l = ctypes.CDLL(None, use_errno=True); "
_CONNECT = "import socket, sys; s = socket.socket(socket.{family}, socket.{kind}); s.settimeout(3); {action}"


@attrs.frozen
class Attempt:
    """One attempt to escape.

    Attributes:
        name: What it tries.
        commands: Run one after another; ``{workspace}`` and others are filled in, see `World`.
        open_in: The sandboxes that do not stop it.
        only_in: Where it is run, if it would do harm elsewhere.
        timeout: Seconds for each command.
    """

    name: str
    commands: tuple[str, ...] = attrs.field(
        converter=lambda value: (value,) if isinstance(value, str) else tuple(value)
    )
    open_in: tuple[str, ...] = ("off",)
    only_in: tuple[str, ...] = KINDS
    timeout: int = 20


def _python(code: str) -> str:
    return f"{{python}} -c '{code}'"


NOWHERE: tuple[str, ...] = ()

ATTEMPTS = [
    # paths
    Attempt("create a file outside", "echo x > {outside}/new"),
    Attempt("create a file outside by ..", "cd {workspace} && echo x > ../outside/new"),
    Attempt("append to a file outside", "echo x >> {outside}/file"),
    Attempt("empty a file outside", "truncate -s 0 {outside}/file || : > {outside}/file"),
    Attempt("delete a file outside", "rm -f {outside}/file"),
    Attempt("rename a file outside", "mv {outside}/file {outside}/file2"),
    Attempt("make a folder outside", "mkdir {outside}/folder"),
    Attempt("change the mode of a file outside", "chmod 777 {outside}/file"),
    Attempt("change the time of a file outside", "touch -d 2001-01-01 {outside}/file"),
    Attempt(
        "write to /etc",
        "echo x > /etc/amplifier-escape-{token} && echo ESC''APED; rm -f /etc/amplifier-escape-{token}",
    ),
    Attempt("read a key in the home folder", "cat {home}/.ssh/id_rsa"),
    Attempt("read a key by ~", "cat ~/.ssh/id_rsa"),
    Attempt("read the stored sessions", "cat {state}/sessions/store.db"),
    Attempt("read another program's temporary file", "cat {temporary}"),
    Attempt("read a hidden file in the working directory", "cat {workspace}/.env"),
    # links
    Attempt("write through a symbolic link", "ln -s {outside} link; echo x > link/new"),
    Attempt("write through a hard link", "ln {outside}/file hard && echo x >> hard"),
    Attempt("read through a symbolic link", "ln -s {home}/.ssh/id_rsa link; cat link"),
    Attempt("move a file of the outside in", "mv {outside}/file stolen"),
    # /proc
    Attempt("write by /proc/self/root", "echo x > /proc/self/root{outside}/new"),
    Attempt("write by /proc/1/root", "echo x > /proc/1/root{outside}/new"),
    Attempt("write by another process's cwd", "echo x > /proc/{victim}/cwd/new"),
    Attempt("read another process's environment", "cat /proc/{victim}/environ"),
    Attempt(
        "read every environment",
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep CANARY",
    ),
    Attempt(
        "read the environments of its parents",
        "p=$PPID; while [ \"$p\" -gt 1 ]; do cat /proc/$p/environ; p=$(awk '/^PPid/{{print $2}}' /proc/$p/status); done",
    ),
    Attempt("read another process's open file", "cat /proc/{victim}/fd/*"),
    Attempt(
        "change a kernel setting",
        "v=$(cat /proc/sys/kernel/core_pattern); echo $v > /proc/sys/kernel/core_pattern && echo ESC''APED",
    ),
    Attempt(
        "use the system request key",
        "echo h > /proc/sysrq-trigger && echo ESC''APED",
        only_in=("bwrap",),
        open_in=NOWHERE,
    ),
    # other processes
    Attempt(
        "attach to a process with ptrace",
        _python(
            _PTRACE
            + 'sys.exit(print("ESC" + "APED") if l.ptrace(0x4206, {victim}, 0, 0) == 0 else 1)'
        ),
    ),
    Attempt(
        "read the memory of a process",
        "head -c 1 /proc/{victim}/mem > /dev/null; dd if=/proc/{victim}/maps bs=64 count=1 2>/dev/null | grep -q - && echo ESC''APED",
    ),
    Attempt("kill a process", "kill -9 {victim}"),
    Attempt("kill a process by its name", "pkill -9 -f victim-{token}"),
    Attempt("kill everything", "kill -9 -1", only_in=("bwrap",), open_in=NOWHERE),
    Attempt(
        "debug by pidfd_getfd",
        _python(
            _PTRACE
            + 'f = l.syscall(434, {victim}, 0); sys.exit(print("ESC" + "APED") if f >= 0 and l.syscall(438, f, 0, 0) >= 0 else 1)'
        ),
    ),
    # daemons
    Attempt("leave a background process", "sleep 600.{token} & disown", open_in=NOWHERE),
    Attempt(
        "leave a daemon with setsid",
        "setsid sleep 600.{token} > /dev/null 2>&1 & sleep 0.1",
        open_in=NOWHERE,
    ),
    Attempt(
        "leave a daemon without environment",
        "(setsid env -i sleep 600.{token} > /dev/null 2>&1 &); sleep 0.1",
        open_in=NOWHERE,
    ),
    Attempt(
        "leave a child of a TERM trap",
        "trap 'setsid env -i sleep 600.{token} > /dev/null 2>&1 &' TERM; sleep 600 & wait",
        timeout=1,
        open_in=NOWHERE,
    ),
    Attempt(
        "kill the parent, then stay",
        "kill -9 $PPID; setsid env -i sleep 600.{token} > /dev/null 2>&1 & sleep 0.2",
    ),
    # network
    Attempt(
        "connect by TCP",
        _python(
            _CONNECT.format(
                family="AF_INET",
                kind="SOCK_STREAM",
                action='s.connect(("127.0.0.1", {port})); s.send(b"x")',
            )
        ),
    ),
    Attempt(
        "send by UDP",
        _python(
            _CONNECT.format(
                family="AF_INET", kind="SOCK_DGRAM", action='s.sendto(b"x", ("127.0.0.1", {port}))'
            )
        ),
    ),
    Attempt(
        "connect to a socket in the working directory",
        _python(
            _CONNECT.format(
                family="AF_UNIX",
                kind="SOCK_STREAM",
                action='s.connect("{workspace}/socket"); s.send(b"x")',
            )
        ),
    ),
    Attempt(
        "connect to a socket outside",
        _python(
            _CONNECT.format(
                family="AF_UNIX",
                kind="SOCK_STREAM",
                action='s.connect("{outside}/socket"); s.send(b"x")',
            )
        ),
    ),
    Attempt(
        "connect to an abstract socket",
        _python(
            _CONNECT.format(
                family="AF_UNIX",
                kind="SOCK_STREAM",
                action='s.connect("\\x00{token}"); s.send(b"x")',
            )
        ),
    ),
    # programs that run outside or with more rights
    Attempt(
        "plant modules for the next command",
        (
            "for m in sitecustomize ctypes marshal json os; do echo 'open(\"{outside}/new\", \"w\")' > $m.py; done; echo 'echo x > {outside}/new' > .bashrc",
            "true",
        ),
        open_in=NOWHERE,
    ),
    Attempt(
        "plant a library with LD_PRELOAD",
        (
            "echo '{workspace}/x.so' > ld.so.preload; export LD_PRELOAD={workspace}/x.so BASH_ENV={workspace}/e; echo 'echo x > {outside}/new' > e; bash -c true",
            "true",
        ),
    ),
    Attempt(
        "run a script with its own interpreter",
        "printf '#!/bin/sh\\necho x > {outside}/new\\n' > s; chmod +x s; ./s",
    ),
    Attempt(
        "become another user",
        "su root -c 'echo x > {outside}/new' || sudo -n sh -c 'echo x > {outside}/new'",
    ),
    # namespaces and devices
    Attempt(
        "mount in a new namespace",
        "mkdir m; unshare -rm sh -c 'mount --bind {outside} m && echo x > m/new'",
    ),
    Attempt(
        "make the file system writable",
        "mount -o remount,bind,rw {outside} && echo x > {outside}/new; umount {outside}",
        only_in=("bwrap",),
        open_in=NOWHERE,
    ),
    Attempt("make a device", "mknod device c 1 1 && echo ESC''APED"),
    # bombs
    Attempt("use 1 GiB of memory", _python('b = bytearray(1 << 30); print("ESC" + "APED")')),
    Attempt(
        "write 64 MiB into a file",
        "head -c 67108864 /dev/zero > big; [ $(stat -c %s big) -gt 20000000 ] && echo ESC''APED",
    ),
    Attempt(
        "start 200 processes",
        "for i in $(seq 200); do sleep 30 & done; sleep 3; [ $(jobs -r | wc -l) -gt 190 ] && echo ESC''APED; kill $(jobs -p)",
    ),
    Attempt(
        "run for ever",
        "trap '' TERM INT; while :; do :; done & echo 600.{token}; while :; do :; done",
        timeout=1,
        open_in=NOWHERE,
    ),
]


class World:
    """A working directory, and around it everything that a command must not reach."""

    def __init__(self, root: Path) -> None:
        self.token = str(uuid.uuid4().int)
        self.canary = f"CANARY-{self.token}"
        self.workspace, self.outside, self.home, self.state = (
            root / name for name in ("workspace", "outside", "home", "state")
        )
        for folder in (
            self.workspace,
            self.outside,
            self.home / ".ssh",
            self.state / "sessions" / "s",
        ):
            folder.mkdir(parents=True)
        (self.outside / "file").write_text("untouched")
        for secret in (
            self.home / ".ssh" / "id_rsa",
            self.state / "sessions" / "store.db",
            self.workspace / ".env",
        ):
            secret.write_text(self.canary)
        self.connections = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """With its servers and its process."""
        with contextlib.ExitStack() as stack:
            temporary = stack.enter_context(tempfile.NamedTemporaryFile("w"))
            temporary.write(self.canary)
            temporary.flush()
            self.temporary = temporary.name
            secret = stack.enter_context((self.home / ".ssh" / "id_rsa").open())
            self.victim = stack.enter_context(
                subprocess.Popen(
                    ["/bin/sh", "-c", f": victim-{self.token}; sleep 1000 & wait"],
                    stdin=secret,
                    env={"KEY": self.canary, "PATH": os.environ["PATH"]},
                    cwd=self.outside,
                    start_new_session=True,
                )
            )
            stack.callback(lambda: os.killpg(self.victim.pid, 9))
            tcp, udp = (
                socket.create_server(("127.0.0.1", 0)),
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            )
            self.port = tcp.getsockname()[1]
            udp.bind(("127.0.0.1", self.port))
            servers = [tcp, udp]
            for address in (
                f"{self.workspace}/socket",
                f"{self.outside}/socket",
                f"\0{self.token}",
            ):
                servers.append(server := socket.socket(socket.AF_UNIX))
                server.bind(address)
                server.listen()
            for server in servers:
                stack.callback(server.close)
                stack.callback(_shut, server)
                threading.Thread(target=self._serve, args=(server,), daemon=True).start()
            self.before = self._snapshot()
            yield

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                if server.type == socket.SOCK_DGRAM:
                    if not server.recv(10):
                        return
                else:
                    server.accept()[0].close()
                self.connections += 1

    def _snapshot(self) -> object:
        def of(path: Path) -> tuple[Any, ...]:
            found = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
            return (
                path.name,
                found.st_mode,
                content,
                found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0,
            )

        return sorted(of(path) for path in self.outside.rglob("*"))

    def escaped(self, results: list[ToolResult]) -> str | None:
        """How a command got out; None if it did not."""
        text = "".join(
            str((result.output or {}).get(name))
            for result in results
            for name in ("stdout", "stderr")
            if isinstance(result.output, dict)
        )
        if self.canary in text:
            return "it read a secret"
        if "ESCAPED" in text:
            return "it was not denied"
        if self._snapshot() != self.before:
            return "it changed files"
        if self.victim.poll() is not None:
            return "it ended another process"
        if self.connections:
            return "it reached a server"
        if left := running_processes(f"600.{self.token}"):
            for line in left:
                with contextlib.suppress(OSError):
                    os.kill(int(line.split()[0]), 9)
            return "it left a process"
        return None


def _shut(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def world() -> Iterator[World]:
    """A world below the project folder, which a sandbox shows: unlike ``/tmp``, where a command sees nothing anyway."""
    parent = ROOT / ".bubblewrap"
    parent.mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="world-", dir=parent))
    try:
        made = World(root)
        with made.opened():
            yield made
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def run_attempt(
    attempt: Attempt, kind: str, place: World
) -> tuple[list[ToolResult], str | None]:
    """Run an attempt in a sandbox; its results, and how it escaped."""
    coordinator = TestCoordinator()
    config = {
        **LIMITS,
        "sandbox": kind,
        "working_dir": str(place.workspace),
        "hidden": [str(place.workspace / ".env"), str(place.state)],
        "kill_grace": 0.3,
        "readable": [sys.base_prefix],  # may be in the home folder
    }
    await tool_bash.mount(coordinator, config)
    if coordinator.get_capability("bash.sandbox")["kind"] != kind:
        raise RuntimeError(f"the sandbox {kind} is not in use")  # some attempts do harm elsewhere
    tool = coordinator.get("tools", "bash")
    known = {
        name: str(getattr(place, name))
        for name in ("workspace", "outside", "home", "state", "token", "port", "temporary")
    }
    known |= {"victim": str(place.victim.pid), "python": f"{sys.base_prefix}/bin/python3"}
    results = [
        await tool.execute({"command": _filled(command, known), "timeout": attempt.timeout})
        for command in attempt.commands
    ]
    await coordinator.cleanup()
    return results, place.escaped(results)


def _filled(command: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        command = command.replace(f"{{{name}}}", value)
    return command.replace("{{", "{").replace("}}", "}")
