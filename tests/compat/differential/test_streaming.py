"""A loop that reads streams, and a provider of the shape it was written for, on both kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ..published_agent import CONTEXT, write_package
from ..published_streaming import LOOP, PROVIDER

PROGRAM = """
import asyncio, json, logging, os, sys
if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat
    amplifier.compat.install()
import amplifier_core as core
logging.disable(logging.CRITICAL)
sys.path[:0] = sys.argv[1:]
PLAN = {
    "session": {"orchestrator": "loop-scripted", "context": "context-scripted"},
    "providers": [{"module": "provider-speaker", "config": {"words": ["as ", "", "published"]}}],
}

async def main():
    async with core.AmplifierSession(PLAN, session_id="s") as session:
        answers = [await session.execute("hi"), await session.execute("again")]
        loop = session.coordinator.get("orchestrator")
        messages = await session.coordinator.get("context").get_messages()
    return [answers, loop.paths, [[m["role"], m["content"]] for m in messages]]

print(json.dumps(asyncio.run(main())), flush=True)
os._exit(0)
"""


def test_a_loop_reads_a_stream_of_dicts_alike(reference_python: str, tmp_path: Path):
    modules = {"loop-scripted": LOOP, "provider-speaker": PROVIDER, "context-scripted": CONTEXT}
    roots = [str(write_package(tmp_path, module_id, source)) for module_id, source in modules.items()]
    seen = []
    for python, alias in ((reference_python, ""), (sys.executable, "1")):
        ran = subprocess.run(
            [python, "-W", "ignore", "-c", PROGRAM, *roots],
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "AMPLIFIER_COMPAT": alias},
            check=True,
        )
        seen.append(json.loads(ran.stdout))
    assert seen[0] == seen[1]
    assert seen[0][:2] == [["as published", "as published"], ["stream", "stream"]]
