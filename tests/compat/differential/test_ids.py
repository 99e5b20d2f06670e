"""Our package is installed beside the published kernel, which must not take our modules for published ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import asyncio, json, logging, os
if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat
    amplifier.compat.install()
import importlib.metadata
from amplifier_core.loader import ModuleLoader
logging.disable(logging.CRITICAL)

async def main():
    loader = ModuleLoader()
    found = [module.id for module in await loader.discover()]
    entries = [entry.name for entry in importlib.metadata.entry_points(group="amplifier.modules")]
    return [found, entries]

print(json.dumps(asyncio.run(main())), flush=True)
os._exit(0)
"""


def test_published_loader_ignores_own_modules(reference_python: str):
    for python, alias in ((reference_python, ""), (sys.executable, "1")):
        ran = subprocess.run(
            [python, "-W", "ignore", "-c", PROGRAM],
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "AMPLIFIER_COMPAT": alias},
            check=True,
        )
        assert json.loads(ran.stdout) == [[], []]
