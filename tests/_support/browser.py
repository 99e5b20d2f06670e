"""A headless Chromium for tests of pages: ``python -m tests._support.browser`` brings it into the project's ``.browser`` folder.

An installed one is used as it is. Otherwise the packages of Debian are downloaded and unpacked, with the libraries and fonts that
the machine lacks; neither takes root, and a second run finds everything in place. No package of npm or PyPI has a Chromium for
both x86-64 and ARM. The browser is driven over its DevTools protocol through a pair of pipes, so that no client library and no
port is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tests._support.tree import ROOT

FOLDER = ROOT / ".browser"
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
INSTALLED = ("chromium-headless-shell", "chromium", "google-chrome", "google-chrome-stable")

_PROGRAM = FOLDER / "root" / "usr" / "lib" / "chromium" / "chromium-headless-shell"
_READY = FOLDER / "ready"
_PATIENCE = 60.0
_DOWNLOAD_PATIENCE = 600.0
# The protocol uses the descriptors 3 and 4.
_START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
_KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
_OPTIONS = (
    "--headless",
    "--no-sandbox",  # what is opened is our own file, and containers do not allow the sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def bring() -> tuple[str, dict[str, str]]:
    """The browser and the environment it needs; downloads it if there is none.

    Raises:
        RuntimeError: There is none, and it cannot be downloaded.
    """
    installed = next(filter(None, map(shutil.which, INSTALLED)), None)
    if installed is not None:
        return installed, dict(os.environ)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not _READY.exists():
            _unpack()
    root = FOLDER / "root"
    libraries = sorted({str(file.parent) for file in (root / "usr" / "lib").rglob("*.so*")})
    fonts = (
        {"FONTCONFIG_PATH": str(root / "etc" / "fonts")}
        if (root / "etc" / "fonts" / "fonts.conf").is_file()
        else {}
    )
    ours = {
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "XDG_DATA_HOME": str(root / "usr" / "share"),
        **fonts,
    }
    return str(_PROGRAM), {**os.environ, **ours}


def page_file(opened: str, token: str) -> Path:
    """Return the file that a browser was given; its command line, which every user can read, has no token."""
    assert opened.startswith("file:///")
    assert token not in opened
    file = Path(url2pathname(urlsplit(opened).path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    return file


def _unpack() -> None:
    """Download the packages with private lists and a private cache, and unpack them."""
    if shutil.which("apt-get") is None:
        raise RuntimeError(
            f"there is no browser; install one of {', '.join(INSTALLED)} (this is no Debian system)"
        )
    state, cache, root = FOLDER / "state", FOLDER / "cache", FOLDER / "root"
    for leftover in (state, cache, root):
        shutil.rmtree(leftover, ignore_errors=True)
    (state / "lists" / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    settings = {
        "Dir::State": state,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": cache,
        "Debug::NoLocking": 1,
        "APT::Sandbox::User": "root",  # its own user may not write here; without root there is no other user
    }
    apt = [
        "apt-get",
        "-qq",
        *(word for key, value in settings.items() for word in ("-o", f"{key}={value}")),
    ]
    _run([*apt, "update"])
    _run([*apt, "-y", "--no-install-recommends", "--download-only", "install", *PACKAGES])
    for archive in sorted((cache / "archives").glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(root)])
    shutil.rmtree(state)
    shutil.rmtree(cache)
    _READY.touch()


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DOWNLOAD_PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}"
        )


@final
class Tab:
    """One page in the browser.

    Attributes:
        problems: What the browser logged about the page: errors of scripts, refused loads, violations of its policy.
        requests: The addresses that were requested since ``Network.enable`` was sent.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def open(self, address: str, *, width: int, height: int = 844) -> None:
        """Show an address in a window of this size, and wait until it is loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait in the page until a JavaScript expression is true."""
        look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 10)"
        self.evaluate(f"new Promise((done) => {{ {look}; look(); }}).then(() => true)")

    def press(self, key: str, text: str | None = None) -> None:
        """Press a key, which may enter a text."""
        common = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": _KEYS.get(key, 0),
            **({"text": text} if text else {}),
        }
        self.send("Input.dispatchKeyEvent", type="keyDown", **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self) -> bytes:
        """The whole page as PNG, to look at while a page is designed."""
        return base64.b64decode(
            self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        )

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        give_up = time.monotonic() + _PATIENCE
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0.0, give_up - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Log.entryAdded":
            self.problems.append(message["params"]["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message


@contextmanager
def open_tab() -> Iterator[Tab]:
    """A browser of its own with an empty profile, and one page in it."""
    program, environment = bring()
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        words = [program, *_OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(answers), *words],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, "HOME": profile},
        )
        os.close(commands)
        os.close(answers)
        try:
            yield Tab(to_browser, from_browser)
        finally:
            process.kill()
            process.wait()
            os.close(to_browser)
            os.close(from_browser)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{bring()[0]}\n")
    except (
        RuntimeError
    ) as error:  # the other tests do without; those of pages fail with the same message
        sys.stderr.write(f"{error}\n")
