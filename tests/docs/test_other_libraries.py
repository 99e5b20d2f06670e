"""The programs of "come from another library" run with those libraries, as they stand, against a server that speaks as OpenAI's does.

They are installed by ``make .venv-bench/.rivals``, beside nothing of ours; the program with amplifier is run by `test_code_blocks`.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests._support.tree import ROOT
from tests.docs.scripted_model import running_model

RIVALS = Path(os.environ.get("AMPLIFIER_TEST_RIVALS", ROOT / ".venv-bench" / "bin" / "python"))
PAGE = (ROOT / "docs" / "how-to" / "come-from-another-library.md").read_text(encoding="utf-8")
PROGRAMS = dict(
    re.findall(
        r"^## ([\w-]+)\n[^#]*?^<!-- run with the rivals -->\n```py\n(.*?)^```", PAGE, re.M | re.S
    )
)
APPROVED = ["allow note {'text': 'rain in Oslo'}", "city='Oslo' rain=True"]
PRINTED = {
    "pydantic-ai": APPROVED,
    "openai-agents": APPROVED,
    "LangGraph": APPROVED,
}


@pytest.mark.slow
@pytest.mark.parametrize("library", PRINTED)
def test_program_with_other_library_runs_unchanged(library, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAMS[library], encoding="utf-8")
    with running_model() as environment:
        command = [str(RIVALS), "program.py"]
        # Its own tracing goes to a server of OpenAI.
        environment |= {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.replace('"', "'").splitlines() == PRINTED[library]
