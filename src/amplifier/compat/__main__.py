"""``python -m amplifier.compat CMD…`` runs a program with this kernel as ``amplifier_core``.

    python -m amplifier.compat -m pytest tests       a module, like python -m
    python -m amplifier.compat script.py argument    a file
    python -m amplifier.compat -c "import …"         a text
    python -m amplifier.compat pytest tests          a Python command of a distribution
    python -m amplifier.compat amplifier run …       the published command line, if installed

Processes that the program starts find the alias too, unless they have their own PYTHONPATH. This
command makes it available to all processes of the environment:

    python -m amplifier.compat enable | disable | status
"""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Final, NoReturn

from amplifier.loading.importing import ENABLE_ALIAS, lacks_alias

from ._alias import PLACE, export_alias, install

_FILE: Final = "amplifier_core_alias.pth"

_USAGE = """\
usage: python -m amplifier.compat (-m MODULE | -c TEXT | FILE | COMMAND) [ARGUMENT …]
       python -m amplifier.compat (enable | disable | status)"""


def main(arguments: list[str]) -> object:
    """Run a command line with the alias installed.

    Args:
        arguments: The arguments after ``python -m amplifier.compat``.

    Returns:
        The result of a command's function, which is the exit status of the process, or None for all
        other programs.
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
        exec(
            compile(rest[0], "<string>", "exec"),
            {"__name__": "__main__", "__builtins__": __builtins__},
        )
        return None
    sys.argv = arguments
    if Path(first).is_file() or Path(first, "__main__.py").is_file():
        _put_first_on_path(str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
        return None
    return _run_command(first)


def _put_first_on_path(entry: str) -> None:
    """Put the directory first on the path that Python would put there for this program."""
    if not sys.flags.safe_path:
        sys.path[0] = entry


def _run_command(name: str) -> object:
    # It is slow to import and only needed here.
    from importlib.metadata import entry_points  # noqa: PLC0415

    matches = [entry for entry in entry_points(group="console_scripts") if entry.name == name]
    # The published command line has the same name as ours, and is the one to run here.
    matches.sort(key=lambda entry: entry.value.startswith("amplifier.cli"))
    if not matches:
        _refuse(f"{name!r} is neither a file nor a Python command of an installed distribution")
    _put_first_on_path(str(Path.cwd()))
    command = matches[0].load()
    answer: object = command()
    return answer


def _refuse(problem: str) -> NoReturn:
    print(f"{problem}\n{_USAGE}", file=sys.stderr)
    raise SystemExit(2)


# ── for the environment ──────────────────────────────────────────────────────────────────────────
# Every interpreter of the environment reads the ``.pth`` files in site-packages at its start. Ours
# puts one directory in front of sys.path and imports nothing, so that a process pays for the alias
# only when it imports ``amplifier_core``.


def enable() -> int:
    """Write the file and return the exit code."""
    file = _file()
    try:
        file.write_text(_line(), encoding="utf-8")
    except OSError as error:
        return _give_up(file, "written", error)
    print(f"enabled: {file}")
    return 0


def disable() -> int:
    """Remove the file and return the exit code."""
    file = _file()
    try:
        file.unlink()
    except FileNotFoundError:
        print(f"not enabled: there is no {file}")
        return 0
    except OSError as error:
        return _give_up(file, "removed", error)
    print(f"disabled: {file} is removed")
    return 0


def status() -> int:
    """Print whether the alias is enabled, and return 0 as the exit code if it is."""
    file = _file()
    try:
        written = file.read_text(encoding="utf-8")
    except OSError:
        print(f"not enabled: `python -m amplifier.compat enable` writes {file}")
        return 1
    if written != _line():
        print(
            f"not enabled: another installation or version of amplifier wrote {file}; "
            "`python -m amplifier.compat enable` replaces it"
        )
        return 1
    print(f"enabled: {file}")
    return 0


def _file() -> Path:
    return Path(sysconfig.get_path("purelib")) / _FILE


def _line() -> str:
    """Return the line of code in the file, which does nothing once the package is gone."""
    return (
        f"import os, sys; place = {PLACE!r}; "
        "os.path.isdir(place) and place not in sys.path and sys.path.insert(0, place)\n"
    )


def _give_up(file: Path, operation: str, error: OSError) -> int:
    print(
        f"{file} cannot be {operation}: {error.strerror or error}; use your own virtual "
        f"environment, or put {PLACE} in front of PYTHONPATH",
        file=sys.stderr,
    )
    return 1


_FOR_THE_ENVIRONMENT: Final = {"enable": enable, "disable": disable, "status": status}

if __name__ == "__main__":
    # Like the script of a command, it exits with the result of its function.
    sys.exit(main(sys.argv[1:]))  # type: ignore[arg-type]
