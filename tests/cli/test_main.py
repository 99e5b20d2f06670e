"""The command line starts, reports its version, and names in one line what is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests._support.programs import run_program
from tests._support.terminal import environment


def test_version_is_installed_one(cli):
    assert cli("--version").out == f"amplifier, version {version('amplifier')}\n"
    finished = run_program([sys.executable, "-m", "amplifier", "--version"])
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == f"python -m amplifier, version {version('amplifier')}\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_little(option):
    program = f"import sys; from amplifier.cli import main; main([{option!r}]); print(*sorted(sys.modules))"
    loaded = run_program([sys.executable, "-c", program]).stdout.split()
    assert {"click", "amplifier.cli.commands.app"} <= set(loaded)
    unwanted = {
        "rich",
        "platformdirs",
        "prompt_toolkit",
        "yaml",
        "trio",
        "asyncio",
        "anyio",
        "attr",
        "importlib.metadata",
        "orjson",
        "amplifier.errors",
        "amplifier.kernel",
        "amplifier.models",
        "amplifier.plan",
        "amplifier.cli.commands.run",
        "amplifier.cli.agent.agent_run",
    }
    assert sorted(unwanted.intersection(loaded)) == []


def test_unknown_command_is_usage_error(cli):
    assert "No such command 'no-such-command'." in cli("no-such-command", code=2).err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["sesion", "list"], "session"), (["docter"], "doctor"), (["module", "validat"], "validate")],
)
def test_misspelt_command_error_suggests_nearest(words, meant, cli):
    assert f"did you mean {meant!r}?" in cli(*words, code=2).err


@pytest.mark.parametrize("words", [["--version"], ["plan", "check", "x.yaml"], []])
def test_missing_click_names_extra(words):
    program = f"import sys; sys.modules['click'] = None; from amplifier.cli import main; sys.exit(main({words!r}))"
    finished = run_program([sys.executable, "-c", program])
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "amplifier: the command line needs an optional part (click is not installed); "
        "install it with: pip install 'amplifier[cli]'\n"
    )


def test_click_is_not_blamed_for_others():
    missing = "amplifier.cli.commands.shared_options"
    program = f"import sys; sys.modules[{missing!r}] = None; from amplifier.cli import main; main(['--version'])"
    finished = run_program([sys.executable, "-c", program])
    assert finished.returncode == 1
    assert missing in finished.stderr.splitlines()[-1]


@pytest.mark.parametrize("width", ["40", "80", "400"])
def test_help_lists_commands_own_descriptions(width):
    program = (
        "import sys; from amplifier.cli.commands import app\n"
        "app.app._summaries = {} if sys.argv[1] == 'imported' else app.app._summaries\n"
        "app.app.main(['--help'], terminal_width=int(sys.argv[2]), max_content_width=int(sys.argv[2]))"
    )
    known, imported = (
        run_program([sys.executable, "-c", program, which, width])
        for which in ("known", "imported")
    )
    assert (known.returncode, known.stdout) == (0, imported.stdout)


def test_ctrl_c_during_import_ends_quietly():
    program = (
        "import sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.modules.pop('click', None); sys.meta_path.insert(0, Impatient())\n"
        "from amplifier.cli import main; sys.exit(main(['--version']))"
    )
    finished = run_program([sys.executable, "-c", program])
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "")


@pytest.mark.slow
def test_usage_line_names_typed_command():
    ended = run_program([sys.executable, "-m", "amplifier", "run", "--nonsense"], timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Usage: python -m amplifier run ")


def test_bash_completes_providers(home, workdir):
    """The code that the command prints, run by a real bash."""
    script = (
        'eval "$(amplifier completion bash)"; COMP_WORDS=(amplifier run -p "o"); COMP_CWORD=3; '
        '_amplifier_completion amplifier; echo "${COMPREPLY[@]}"'
    )
    variables = environment(home)
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    finished = subprocess.run(
        ["bash", "-c", script],
        env=variables,
        cwd=workdir,
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.split() == ["offline", "openai", "openai-compatible"]
