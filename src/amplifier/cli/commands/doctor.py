"""``amplifier doctor``: is everything in place, and if not, what to do about it; and what a run that hangs waits for."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import attrs
import click

from amplifier.cli.agent.default_plan import KEYS, NEEDS, OFFLINE, TOOLS, compose, needs
from amplifier.cli.core.error_messages import complaint
from amplifier.cli.core.exit_codes import Exit
from amplifier.cli.core.installed_modules import installed_modules
from amplifier.cli.sessions.home_folder import HOME_VARIABLE, find_home, running_below, sessions_below
from amplifier.cli.sessions.running_tasks import ask, find_running, running_commands
from amplifier.errors import AmplifierError
from amplifier.loading import ModuleLoader
from amplifier.models import to_json

from .app import SECOND_NAME
from .invocation import complete_running, debug_option, json_option

__all__ = ["doctor"]

Verdict: TypeAlias = Literal["ok", "note", "problem"]
_MARKS = {"ok": "✓", "note": "·", "problem": "✗"}
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
_OUR_COMMAND = "amplifier.cli"
_OPTIONAL = {
    "trio": ("trio", "--backend trio"),
    "prompt_toolkit": ("cli", "chatting at a terminal"),
    "yaml": ("cli", "plans in YAML"),
    "jsonschema_rs": ("validation", "checking tool input against schemas"),
}
"""Packages of extras that no single module stands for: the extra, and what it is good for."""


@attrs.frozen
class Finding:
    """One thing that was looked at."""

    subject: str
    verdict: Verdict
    text: str


@click.command()
@click.option(
    "--tasks",
    "wanted",
    metavar="PID|ID",
    shell_complete=complete_running,
    help="Show what every task of a running command waits for: by its process id, its session id, or `last`.",
)
@json_option
@debug_option
def doctor(wanted: str | None, as_json: bool) -> int:
    """Check Python, backends, extras, modules, keys, the command itself, the state folder, the terminal and what is running.

    The exit code is 0 when `amplifier run` can work and 1 when it cannot. Keys are never shown.

    With --tasks nothing is checked: a running `amplifier run` is asked for its tasks, with the module each is in, its deadline and
    the line it waits at. It is not disturbed. `kill -USR1 PID` makes it print the same on its own standard error.
    """
    if wanted is not None:
        return _show_tasks(wanted, as_json=as_json)
    findings = [finding for look in _CHECKS for finding in _safely(look)]
    failed = any(finding.verdict == "problem" for finding in findings)
    if as_json:
        shown = {"ok": not failed, "findings": [attrs.asdict(finding) for finding in findings]}
        click.echo(json.dumps(shown, indent=2))
    else:
        for finding in findings:
            mark = click.style(_MARKS[finding.verdict], fg=_COLOURS[finding.verdict])
            click.echo(f"{mark} {finding.subject:10} {finding.text}")
    return Exit.FAILED if failed else Exit.OK


def _show_tasks(wanted: str, *, as_json: bool) -> int:
    folder = running_below(find_home())
    tree = ask(folder, find_running(folder, wanted))
    click.echo(to_json(tree) if as_json else str(tree))
    return Exit.OK


def _safely(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except Exception as error:  # noqa: BLE001  # a check that cannot be made is a finding like any other
        yield Finding(look.__name__.removeprefix("_look_at_"), "problem", complaint(error))


def _look_at_python() -> Iterator[Finding]:
    is_supported = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        "ok" if is_supported else "problem",
        f"{platform.python_version()} on {platform.system()}, amplifier {_version('amplifier')}",
    )


def _look_at_backends() -> Iterator[Finding]:
    for backend in ("asyncio", "trio"):
        try:
            anyio.run(anyio.sleep, 0, backend=backend)
        except ImportError:
            yield Finding("backend", "note", f"{backend} is not installed: pip install 'amplifier[trio]'")
        else:
            yield Finding("backend", "ok", f"{backend} runs (anyio {_version('anyio')})")


def _look_at_extras() -> Iterator[Finding]:
    for package, (extra, purpose) in _OPTIONAL.items():
        yield _package(package, extra, purpose)
    by_package: dict[str, list[str]] = {}
    for module_id, (package, _) in NEEDS.items():
        by_package.setdefault(package, []).append(module_id)
    for package, module_ids in by_package.items():
        yield _package(package, NEEDS[module_ids[0]][1], ", ".join(module_ids))


def _package(package: str, extra: str, purpose: str) -> Finding:
    # Found, not imported: some of them take seconds.
    if find_spec(package) is None:
        return Finding("extra", "note", f"{package} is not installed ({purpose}): pip install 'amplifier[{extra}]'")
    return Finding("extra", "ok", f"{package} is installed ({purpose})")


def _look_at_modules() -> Iterator[Finding]:
    found = [entry.info for entry in installed_modules()]
    loader = ModuleLoader()
    broken = 0
    for info in found:
        if needs(info.id) is not None:
            continue  # reported with its extra
        try:
            anyio.run(loader.load, info.id)
        except AmplifierError as error:
            broken += 1
            yield Finding("module", "problem" if info.id in _wanted() else "note", f"{info.id}: {complaint(error)}")
    loader.cleanup()
    yield Finding("modules", "ok" if found else "problem", f"{len(found)} found, {broken} of them broken")
    missing = sorted(_wanted() - {info.id for info in found})
    if missing:
        fatal = not _wanted_by_everyone().isdisjoint(missing)
        yield Finding("modules", "problem" if fatal else "note", f"the default plan goes without {', '.join(missing)}")


def _wanted_by_everyone() -> set[str]:
    return {"loop-streaming", "context-persistent", OFFLINE}


def _wanted() -> set[str]:
    return {*_wanted_by_everyone(), *TOOLS, "hooks-logging", "hooks-approval", "hooks-redaction"}


def _look_at_keys() -> Iterator[Finding]:
    for variable, module_id in KEYS.items():
        is_set = bool(os.environ.get(variable))
        said = f"{variable} is {'set' if is_set else 'not set'} ({module_id})"
        yield Finding("key", "ok" if is_set else "note", said)
    chosen = compose({entry.info.id for entry in installed_modules()}).provider
    yield Finding("provider", "ok", f"{chosen} answers unless -p names another")


def _look_at_command() -> Iterator[Finding]:
    """The published command line installs a command of our name; of two the one installed last is there."""
    others = [
        f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        for entry in entry_points(group="console_scripts", name="amplifier")
        if not entry.value.startswith(_OUR_COMMAND)
    ]
    path = shutil.which("amplifier")
    if path is None:
        yield Finding("command", "note", f"no command `amplifier` is on the PATH; {_instead()}")
    elif _is_ours(path):
        yield Finding("command", "ok", f"{path} is this command")
        if others:
            yield Finding(
                "command", "note", f"{', '.join(others)} installs a command `amplifier` as well; {_instead()}"
            )
    else:
        whose = f"that of {', '.join(others)}" if others else "another program"
        yield Finding("command", "note", f"{path} is not this command but {whose}; {_instead()}")


def _is_ours(path: str) -> bool:
    """Whether a script starts our command line, by what is written in it; the module's name is in every kind of launcher."""
    try:
        return _OUR_COMMAND.encode() in Path(path).read_bytes()
    except OSError:
        return False


def _instead() -> str:
    return f"`{SECOND_NAME}` and `python -m amplifier` always are"


def _look_at_state() -> Iterator[Finding]:
    sessions = sessions_below(find_home())
    source = HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else "the default"
    try:
        sessions.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=sessions):
            pass
    except OSError as error:
        text = f"{sessions} ({source}) cannot be written to: {error.strerror or error}; set {HOME_VARIABLE}"
        yield Finding("state", "problem", text)
    else:
        yield Finding("state", "ok", f"{sessions} ({source}) can be written to")


def _look_at_terminal() -> Iterator[Finding]:
    names = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name).isatty()]
    encoding = getattr(sys.stdout, "encoding", None)
    kind = os.environ.get("TERM") or "not named"
    text = f"{', '.join(names) or 'no stream'} at a terminal; TERM {kind}; output in {encoding}"
    yield Finding("terminal", "ok", text)
    if "stdin" not in names or "stderr" not in names:
        yield Finding(
            "terminal", "note", "nobody can be asked for permission here; a run needs --yes to be allowed things"
        )


def _look_at_running() -> Iterator[Finding]:
    for each in running_commands(running_below(find_home())):
        text = f"session {each.session_id} since {each.started}, on {each.backend}; amplifier doctor --tasks {each.pid}"
        yield Finding("running", "ok", text)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(not installed)"


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _look_at_python,
    _look_at_backends,
    _look_at_extras,
    _look_at_modules,
    _look_at_keys,
    _look_at_command,
    _look_at_state,
    _look_at_terminal,
    _look_at_running,
)
