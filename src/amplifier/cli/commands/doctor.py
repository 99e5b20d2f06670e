"""``amplifier doctor``: checks the installation, and shows the tasks of a running command."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import distributions, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import attrs
import click

from amplifier._internal.facade import __version__
from amplifier._internal.json import visible_text
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli._sessions import HOME_VARIABLE, LAST, find_home, require_writable, running_folder
from amplifier.cli.agent.configuration import load_keys, read_configuration
from amplifier.cli.agent.default_plan import API_KEYS, DEFAULT_TOOLS, OFFLINE_PROVIDER, build_plan
from amplifier.errors import AmplifierError
from amplifier.loading import ModuleLoader
from amplifier.loading.importing import is_published
from amplifier.loading.loader import (
    ON_ISLAND,
    REQUIRED_PACKAGES,
    installed_modules,
    missing_package,
    runs_on_island,
)
from amplifier.models import to_json
from amplifier.tracing.running_commands import RunningCommand, request_tasks, running_commands

from .app import SECOND_NAME
from .shared_options import json_option

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
"""The extra and the purpose of each package that doesn't belong to a single module."""

_REQUIRED_MODULES = {"loop-streaming", "context-persistent", OFFLINE_PROVIDER}
_DEFAULT_MODULES = {
    *_REQUIRED_MODULES,
    *DEFAULT_TOOLS,
    "hooks-logging",
    "hooks-approval",
    "hooks-redaction",
}
_OTHER_NAMES = f"`{SECOND_NAME}` and `python -m amplifier` always are"


@attrs.frozen
class Finding:
    """The result of one check."""

    subject: str
    verdict: Verdict
    text: str


@click.command()
@click.option(
    "--tasks",
    "wanted",
    metavar="PID|ID",
    help="Show every task of a running command, by its process id, session id, or `last`.",
)
@json_option
def doctor(wanted: str | None, as_json: bool) -> int:
    """Check the installation, and list running commands.

    This covers Python, backends, extras, modules, keys, the command itself, the sandbox and the
    state folder. The exit code is 0 when `amplifier run` can work and 1 when it cannot. Keys are
    never shown.

    With --tasks nothing is checked. A running `amplifier run` reports its tasks, each with its
    module, its deadline and the line where it waits, and keeps running. `kill -USR1 PID` makes it
    print the same on its own standard error.
    """
    if wanted is not None:
        running = find_running(running_folder(), wanted)
        try:
            tree = request_tasks(running_folder(), running)
        except (ProcessLookupError, TimeoutError) as error:
            raise CommandError(str(error), exit_code=Exit.FAILED) from error
        click.echo(to_json(tree) if as_json else str(tree))
        return Exit.OK
    findings = [finding for check in _CHECKS for finding in _findings(check)]
    failed = any(finding.verdict == "problem" for finding in findings)
    if as_json:
        shown = {"ok": not failed, "findings": [attrs.asdict(finding) for finding in findings]}
        click.echo(json.dumps(shown, indent=2))
    else:
        for finding in findings:
            mark = click.style(_MARKS[finding.verdict], fg=_COLOURS[finding.verdict])
            click.echo(f"{mark} {finding.subject:10} {visible_text(finding.text, multiline=False)}")
    return Exit.FAILED if failed else Exit.OK


def find_running(folder: Path, wanted: str) -> RunningCommand:
    """Return the command of a process id, a session id, or ``last``.

    Raises:
        CommandError: There is no such command, or several, because servers share a name.
    """
    running = running_commands(folder)
    matches = [
        command for command in running if wanted in (LAST, str(command.pid), command.session_id)
    ]
    if len(matches) == 1 or (matches and wanted == LAST):
        return matches[0]
    if matches:
        several = " and ".join(str(command.pid) for command in matches)
        raise CommandError(
            f"{wanted!r} is more than one process: {several}; give the id of one of them"
        )
    listed = ", ".join(f"{command.pid} (session {command.session_id})" for command in running)
    here = f"running now: {listed}" if running else "nothing is running"
    raise CommandError(
        f"no `amplifier run` of yours is process or session {wanted!r}; {here}. "
        "For a program that embeds an agent, put "
        "`with amplifier.tracing.tasks_on_signal(signal.SIGUSR1):` around it, "
        "then run `kill -USR1 PID`"
    )


def _findings(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    # A failing check is a finding as well.
    except Exception as error:  # noqa: BLE001
        yield Finding(check.__name__.removeprefix("_check_"), "problem", error_message(error))


def _check_backends() -> Iterator[Finding]:
    yield Finding(
        "python",
        "ok",
        f"{platform.python_version()} on {platform.system()}, amplifier {__version__}",
    )
    for backend in ("asyncio", "trio"):
        if find_spec(backend) is None:
            yield Finding(
                "backend", "note", f"{backend} is not installed: pip install 'amplifier[trio]'"
            )
        else:
            anyio.run(anyio.sleep, 0, backend=backend)
            yield Finding("backend", "ok", f"{backend} runs (anyio {version('anyio')})")


def _check_extras() -> Iterator[Finding]:
    packages = dict(_OPTIONAL)
    for module_id, (package, extra) in REQUIRED_PACKAGES.items():
        modules = f"{packages[package][1]}, {module_id}" if package in packages else module_id
        packages[package] = (extra, modules)
    for package, (extra, purpose) in packages.items():
        # Look it up without importing it, because some imports take seconds.
        if find_spec(package) is not None:
            yield Finding("extra", "ok", f"{package} is installed ({purpose})")
        else:
            text = f"{package} is not installed ({purpose}): pip install 'amplifier[{extra}]'"
            yield Finding("extra", "note", text)


def _check_modules() -> Iterator[Finding]:
    module_ids = [entry.info.id for entry in installed_modules()]
    loader = ModuleLoader()
    broken, published, on_island = 0, list[str](), list[str]()
    for module_id in module_ids:
        # The module is reported with its extra.
        if missing_package(module_id) is not None:
            continue
        try:
            loaded = anyio.run(loader.load, module_id)
            on_island += [module_id] if runs_on_island(loaded) else []
            if is_published(str(getattr(loaded.mount, "__module__", ""))):
                published.append(module_id)
        except AmplifierError as error:
            broken += 1
            verdict: Verdict = "problem" if module_id in _DEFAULT_MODULES else "note"
            yield Finding("module", verdict, f"{module_id}: {error_message(error)}")
    loader.cleanup()
    yield from _published_kernel(published)
    for module_id in on_island:
        yield Finding("module", "ok", f"{module_id} {ON_ISLAND}")
    text = f"{len(module_ids)} found, {broken} of them broken"
    yield Finding("modules", "ok" if module_ids else "problem", text)
    missing = _DEFAULT_MODULES.difference(module_ids)
    if missing:
        verdict = "note" if _REQUIRED_MODULES.isdisjoint(missing) else "problem"
        text = f"the default plan goes without {', '.join(sorted(missing))}"
        yield Finding("modules", verdict, text)


def _published_kernel(modules: list[str]) -> Iterator[Finding]:
    """Report the published kernel's package, and the modules that use its alias here."""
    wheel = next(iter(distributions(name="amplifier-core", path=sys.path)), None)
    if wheel is not None:
        place = wheel.locate_file("amplifier_core")
        text = (
            f"amplifier-core {wheel.version} is installed ({place}); "
            "commands of amplifier use the alias instead"
        )
        yield Finding("published", "note", text)
    if modules:
        text = (
            f"{', '.join(modules)} import amplifier_core and run on this kernel by its alias; "
            "all others are native"
        )
        yield Finding("published", "ok", text)
    if wheel is not None or modules:
        users = "commands of amplifier and programs that load modules with it"
        if any(Path(entry, "amplifier_core_alias.pth").is_file() for entry in sys.path):
            users = "every Python process"
        text = f"the alias is there for {users}; python -m amplifier.compat status"
        yield Finding("published", "ok", text)


def _check_keys() -> Iterator[Finding]:
    environment = dict(os.environ)
    for problem in load_keys():
        yield Finding("key", "problem", problem)
    for variable, module_id in API_KEYS.items():
        is_set = bool(os.environ.get(variable))
        source = "" if environment.get(variable) else " in the keyring"
        text = f"{variable} is {f'set{source}' if is_set else 'not set'} ({module_id})"
        yield Finding("key", "ok" if is_set else "note", text)
    available = {entry.info.id for entry in installed_modules()}
    provider = build_plan(available, configuration=read_configuration(Path.cwd())).provider
    yield Finding("provider", "ok", f"{provider} answers by default; choose another with -p")


# The published command line installs a command of the same name, and the distribution that was
# installed last wins.
def _check_command() -> Iterator[Finding]:
    others = [
        f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        for entry in entry_points(group="console_scripts", name="amplifier")
        if not entry.value.startswith(_OUR_COMMAND)
    ]
    path, is_ours = shutil.which("amplifier"), False
    # Every kind of launcher contains the module's name.
    with suppress(OSError):
        is_ours = path is not None and _OUR_COMMAND.encode() in Path(path).read_bytes()
    if path is None:
        yield Finding("command", "note", f"no command `amplifier` is on the PATH; {_OTHER_NAMES}")
    elif is_ours:
        yield Finding("command", "ok", f"{path} is this command")
        if others:
            text = f"{', '.join(others)} installs a command `amplifier` as well; {_OTHER_NAMES}"
            yield Finding("command", "note", text)
    else:
        owner = f"that of {', '.join(others)}" if others else "another program"
        yield Finding("command", "note", f"{path} is not this command but {owner}; {_OTHER_NAMES}")


def _check_sandbox() -> Iterator[Finding]:
    # Only this check needs it.
    from amplifier.modules.tools.bash import sandbox_here  # noqa: PLC0415

    kind, problem = sandbox_here()
    if problem is not None:
        yield Finding("sandbox", "note", problem)
    else:
        yield Finding("sandbox", "ok", f"{kind} confines the commands of an agent")


def _check_state() -> Iterator[Finding]:
    require_writable(find_home() / "sessions")
    source = HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else "the default"
    yield Finding("state", "ok", f"{find_home() / 'sessions'} ({source}) can be written to")


def _check_running() -> Iterator[Finding]:
    for command in running_commands(running_folder()):
        text = (
            f"session {command.session_id} since {command.started}, on {command.backend}; "
            f"amplifier doctor --tasks {command.pid}"
        )
        yield Finding("running", "ok", text)


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _check_backends,
    _check_extras,
    _check_modules,
    _check_keys,
    _check_command,
    _check_sandbox,
    _check_state,
    _check_running,
)
