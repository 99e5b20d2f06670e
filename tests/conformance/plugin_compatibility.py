"""The pytest plugin together with other common plugins: ``python -m tests.conformance.plugin_compatibility``.

Makes a virtual environment that sees this one, installs pytest-asyncio, pytest-trio, pytest-xdist and pytest-randomly into it,
and runs one suite under every combination that matters, with warnings as errors. It needs an index to install from, so it is
no test; ``make conformance`` runs it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

PLUGINS = ("pytest-asyncio", "pytest-trio", "pytest-xdist", "pytest-randomly")

FILES = {
    "pytest.ini": "[pytest]\n",
    "test_suite.py": """
import anyio
import pytest
from amplifier.conformance.suites import conformance_tests

test_in_one_line = conformance_tests("tool-todo")


@pytest.mark.anyio
async def test_of_anyio():
    await anyio.sleep(0)
""",
    "test_asyncio.py": """
import asyncio
import pytest


@pytest.mark.asyncio
async def test_of_asyncio():
    await asyncio.sleep(0)
""",
    "test_trio.py": """
import pytest
import trio


@pytest.mark.trio
async def test_of_trio():
    await trio.sleep(0)
""",
}

# pytest-asyncio warns for as long as this is not set, with us or without.
ASYNCIO = ["-o", "asyncio_default_fixture_loop_scope=function", "-o"]
COMBINATIONS: dict[str, list[str]] = {
    "pytest-asyncio, strict, beside pytest-trio": [*ASYNCIO, "asyncio_mode=strict"],
    "pytest-asyncio, auto": [*ASYNCIO, "asyncio_mode=auto", "-p", "no:trio", "test_suite.py", "test_asyncio.py"],
    "pytest-trio, trio_mode": ["-o", "trio_mode=true", "-p", "no:asyncio", "test_suite.py", "test_trio.py"],
    "anyio, auto": ["-o", "anyio_mode=auto", "-p", "no:asyncio", "-p", "no:trio", "test_suite.py"],
    "pytest-xdist": [*ASYNCIO, "asyncio_mode=strict", "-n", "2"],
    "pytest-xdist by scope": [*ASYNCIO, "asyncio_mode=strict", "-n", "2", "--dist", "loadscope"],
}


def main() -> int:
    """Try every combination; returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        python = _environment(Path(place, "venv"))
        suite = Path(place, "suite")
        suite.mkdir()
        for name, text in FILES.items():
            (suite / name).write_text(text.lstrip(), encoding="utf-8")
        for name, options in COMBINATIONS.items():
            command = [str(python), "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
            done = subprocess.run(command, cwd=suite, capture_output=True, text=True, check=False)
            sys.stdout.write(f"{name}: {done.stdout.strip().splitlines()[-1]}\n")
            if done.returncode:
                failed += 1
                sys.stdout.write(done.stdout[-3000:] + done.stderr[-1000:])
    return failed


def _environment(place: Path) -> Path:
    """A virtual environment with the plugins that sees everything installed in this one; its interpreter."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    ours = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2] / "src")]
    Path(packages, "ours.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PLUGINS], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
