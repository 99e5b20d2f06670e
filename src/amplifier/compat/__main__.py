"""``python -m amplifier.compat CMD…``: run a Python program in which ``amplifier_core`` is this kernel.

    python -m amplifier.compat -m pytest tests       a module, like python -m
    python -m amplifier.compat script.py argument    a file
    python -m amplifier.compat -c "import …"         a text
    python -m amplifier.compat pytest tests          a command that a distribution installs as a Python function
    python -m amplifier.compat amplifier run …       the published command line, where it is installed

The program runs in this process, after the alias is installed. Python processes that it starts find the alias as well, unless they
are given a PYTHONPATH of their own. For all processes of the environment, until it is disabled:

    python -m amplifier.compat enable | disable | status
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import NoReturn

from amplifier.loading._importing import ENABLE_ALIAS, lacks_alias

from . import install
from ._alias.environment import disable, enable, export_alias, status

_USAGE = """\
usage: python -m amplifier.compat (-m MODULE | -c TEXT | FILE | COMMAND) [ARGUMENT …]
       python -m amplifier.compat (enable | disable | status)"""
_FOR_THE_ENVIRONMENT = {"enable": enable, "disable": disable, "status": status}


def main(arguments: list[str]) -> object:
    """Run a command line with the alias installed.

    Args:
        arguments: What comes after ``python -m amplifier.compat``.

    Returns:
        What a command's function returned, the exit status of the process; None for everything else.
    """
    if not arguments or arguments == ["-m"] or arguments == ["-c"]:
        _refuse("nothing to run")
    if arguments[0] in _FOR_THE_ENVIRONMENT:
        if len(arguments) > 1:
            _refuse(f"{arguments[0]!r} takes no arguments; a file of that name is ./{arguments[0]}")
        return _FOR_THE_ENVIRONMENT[arguments[0]]()
    install()
    export_alias()
    try:
        return _run(arguments)
    except Exception as error:
        if lacks_alias(str(error), error):
            error.add_note(f"a process that was started lacks the alias: {ENABLE_ALIAS}")
        raise


def _run(arguments: list[str]) -> object:
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        _put_first_on_path(str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return None
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        _put_first_on_path("")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
        return None
    sys.argv = arguments
    if Path(first).is_file() or Path(first, "__main__.py").is_file():
        _put_first_on_path(str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
        return None
    return _run_command(first)


def _put_first_on_path(entry: str) -> None:
    """Put the directory first on the path that Python itself would put there for this program."""
    if not sys.flags.safe_path:
        sys.path[0] = entry


def _run_command(name: str) -> object:
    from importlib.metadata import entry_points  # noqa: PLC0415 — slow to import, and only needed here

    found = [entry for entry in entry_points(group="console_scripts") if entry.name == name]
    # The published command line has the name of ours; a command started here means the published one.
    found.sort(key=lambda entry: entry.value.startswith("amplifier.cli"))
    if not found:
        _refuse(
            f"{name!r} is neither a file nor a command that an installed distribution provides as a Python function"
        )
    _put_first_on_path(str(Path.cwd()))
    command = found[0].load()
    answer: object = command()
    return answer


def _refuse(problem: str) -> NoReturn:
    print(f"{problem}\n{_USAGE}", file=sys.stderr)  # noqa: T201 — this is a command line
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))  # type: ignore[arg-type]  # whatever a command returned, as its own script would do
