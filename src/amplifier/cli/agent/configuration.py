"""Configuration files of the user and the project, permissions, and keys in the keyring."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import anyio.to_thread
import attrs

from amplifier._internal.json import visible_text
from amplifier._internal.reading import (
    Kind,
    choice,
    list_of,
    mapping,
    mapping_each,
    option,
    record,
    text,
)
from amplifier._internal.regular_files import make_folders, read_file, replace_file
from amplifier._internal.spelling import suggestion
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import config_folder, find_home
from amplifier.contracts import Coordinator
from amplifier.errors import MissingExtraError, PlanError
from amplifier.events import TOOL_PRE
from amplifier.models import HookResult
from amplifier.modules.hooks.approval import MODES, read_approval_options
from amplifier.plan import expand_variables, merge_plans, type_from_id

from .plan_files import change_module, read_plan_file, with_variables_of_plans
from .project_instructions import project_root, resolve_inside

REMEMBERED: Final = "amplifier permissions"
"""The origin of the permanent permissions of a project."""

_TIGHTENING: Final = ("ask", "deny", "auto_deny")
_MODULES = Kind(
    "an object of modules by their id, such as tool-mcp",
    lambda value: mapping.accepts(value) and all(map(type_from_id, value)),
    mapping_each("", mapping).read,
)


@attrs.frozen(kw_only=True)
class _File:
    """The content of a file."""

    provider: str | None = option(text, None)
    model: str | None = option(text, None)
    theme: str | None = option(choice("dark", "light", "plain"), None)
    rules: tuple[Any, ...] = option(list_of("rules", mapping.accepts), ())
    servers: dict[str, Any] = option(
        mapping_each("an object of servers", mapping), None, key="mcpServers"
    )
    modules: dict[str, Any] = option(_MODULES, None)

    def __attrs_post_init__(self) -> None:
        read_approval_options({"rules": list(self.rules)})


@attrs.frozen
class Value:
    """A value, and the file or command from which it comes."""

    value: Any
    origin: str


@attrs.frozen
class Configuration:
    """The merged configuration.

    Attributes:
        values: Values by path, such as ``provider``, ``mcpServers.NAME``, ``modules.ID`` and
            ``rules.0``.
        notes: Warnings about ignored parts, with the command that trusts them.
    """

    values: dict[str, Value] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        """Return a value, or None if no file has it."""
        return None if key not in self.values else self.values[key].value

    def without(self, origin: str) -> Configuration:
        """Return the configuration without the values of one origin."""
        values = {path: value for path, value in self.values.items() if value.origin != origin}
        return attrs.evolve(self, values=values)

    def below(self, table: str) -> dict[str, Any]:
        """Return the values of a table, keyed by the rest of their paths."""
        paths = [path for path in self.values if path.startswith(f"{table}.")]
        return {path.removeprefix(f"{table}."): self.values[path].value for path in paths}

    def apply(self, plan: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the default plan with the configured rules, servers and modules.

        Raises:
            PlanError: A variable in them is not set.
        """
        modules, changed = self.below("modules"), merge_plans(plan, {})
        if rules := [*self.below("rules").values()]:
            approval = modules.get("hooks-approval", {})
            rules += approval.get("config", {}).get("rules", [])
            modules["hooks-approval"] = merge_plans(
                approval, {"config": {"rules": rules, "use_default_rules": True}}
            )
        if servers := self.below("mcpServers"):
            config = {"config": {"servers": with_variables_of_plans(servers)}}
            modules["tool-mcp"] = merge_plans(modules.get("tool-mcp", {}), config)
        modules = expand_variables(modules, variables)
        for module_id, spec in modules.items():
            kind = str(type_from_id(module_id))
            role = changed["session"].get(kind)
            if role is not None and role["module"] != module_id:
                changed["session"][kind] = module_id
            add = None if role else (f"{kind}s", {"module": module_id})
            changed = change_module(changed, module_id, partial(merge_plans, overlay=spec), add=add)
        return changed


def user_file() -> Path:
    """Return the path of the user's file, which need not exist."""
    return config_folder() / "config.toml"


# The project's file may come with someone else's repository. Until the user has trusted it, and
# again after a change, only its rules that ask or deny are used. Thus it can only tighten the
# rules.
def read_configuration(directory: Path) -> Configuration:
    """Read the configuration for an agent that works in a folder.

    Raises:
        CommandError: A file can't be read or is invalid.
    """
    project, notes = Project(directory), list[str]()
    if (problem := project.problem()) is not None:
        notes.append(visible_text(f"{project.file} is not read: {problem}", multiline=False))
    content = {} if problem is not None else _read(project.file)
    if problem is None and not project.is_trusted():
        rules = [rule for rule in content.get("rules", ()) if rule.get("action") in _TIGHTENING]
        if ignored := [path for path, value in _paths(content) if value not in rules]:
            warning = f"{project.file} is not trusted: {', '.join(ignored)} not used; "
            advice = "look at the file, then trust it as it is: amplifier config trust"
            notes.append(visible_text(warning, multiline=False) + advice)
        content = {"rules": rules}
    remembered = {"rules": project.state().get("rules", [])}
    values: dict[str, Value] = {}
    for layer, origin in (
        (_read(user_file()), user_file()),
        (content, project.file),
        (remembered, REMEMBERED),
    ):
        count = sum(path.startswith("rules.") for path in values)
        values |= {path: Value(value, str(origin)) for path, value in _paths(layer, count)}
    return Configuration(values, tuple(notes))


def _paths(content: Mapping[str, Any], rules: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each setting. The first rule gets the number ``rules``."""
    for key, value in content.items():
        if key == "rules":
            yield from ((f"rules.{number}", rule) for number, rule in enumerate(value, start=rules))
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{name}", member) for name, member in value.items())
        else:
            yield key, value


def _read(file: Path) -> dict[str, Any]:
    """Return the checked content of a file, or an empty dict if there is none."""
    if not file.exists():
        return {}
    content: dict[str, Any] = read_plan_file(file)
    try:
        record(_File).read(content)
    except PlanError as error:
        problems = "\n".join(f"{path}: {problem}" for path, problem in error.problems)
        raise CommandError(f"{file}: {problems}") from error
    return content


def change_user_file(table: str, name: str, value: Any) -> Path:
    """Set a value in a table of the user's file, or remove it with None. Comments are kept.

    Returns:
        The path of the file.

    Raises:
        CommandError: There is no such value to remove, or the file is invalid.
    """
    # Only writing needs tomlkit.
    import tomlkit  # noqa: PLC0415

    file = user_file()
    _read(file)
    document = tomlkit.parse(file.read_text(encoding="utf-8") if file.exists() else "")
    members: Any = document.setdefault(table, tomlkit.table())
    if value is not None:
        members[name] = value
    elif members.pop(name, None) is None:
        raise CommandError(f"{file} has no {table}.{name}; it has: {', '.join(members) or 'none'}")
    make_folders(file.parent)
    replace_file(file, tomlkit.dumps(document).encode())
    return file


class Project:
    """The user's decisions about a project, stored in the state folder.

    Args:
        directory: A folder of the project. The project is its repository or, outside of one, the
            folder alone.

    Attributes:
        root: The folder of the project.
        file: The project's configuration, which need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.root: Path = project_root(directory)
        self.file: Path = self.root / ".amplifier" / "config.toml"

    def problem(self) -> str | None:
        """Return the reason why an existing file isn't read, or None."""
        try:
            resolve_inside(self.file, self.root)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError) as error:
            return str(error)
        return None

    def is_trusted(self) -> bool:
        """Return whether the user has trusted the file in its current form."""
        return not self.file.exists() or self.state().get("trusted") == self.digest()

    def digest(self) -> str:
        """Return a digest of the file's content."""
        return hashlib.sha256(read_file(self.file)).hexdigest()

    def state(self) -> dict[str, Any]:
        """Return the stored decisions: ``trusted``, a digest, and ``rules``."""
        known: dict[str, Any] = _projects().get(str(self.root), {})
        return known

    def change(self, **changes: Any) -> None:
        """Store decisions. None removes one."""
        state = {key: value for key, value in {**self.state(), **changes}.items() if value}
        content = json.dumps({**_projects(), str(self.root): state}, indent=2)
        make_folders(find_home())
        replace_file(find_home() / "projects.json", content.encode())


def _projects() -> dict[str, dict[str, Any]]:
    file = find_home() / "projects.json"
    try:
        projects: dict[str, dict[str, Any]] = json.loads(file.read_bytes()) if file.exists() else {}
    except ValueError as error:
        raise CommandError(
            f"{file} is damaged ({error}); remove it, and trust your projects again"
        ) from error
    return projects


# ── permissions ──


class Permissions:
    """The permissions of one run.

    Args:
        directory: The folder of the agent.
        mode: The first mode, one of `MODES`.

    Attributes:
        mode: The current mode.
    """

    def __init__(self, directory: Path, mode: str = "ask") -> None:
        self._project = Project(directory)
        self._set_rules: Any = None
        self._rule_for_call: Any = None
        self._allowed: list[dict[str, Any]] = []
        self.mode: str = mode

    def open(self, coordinator: Coordinator, *, remembers: bool = True) -> None:
        """Use the mode in a session, and the permanent permissions if ``remembers`` is True.

        Raises:
            CommandError: A mode was chosen, and the plan has no module for modes.
        """
        self._set_rules = coordinator.get_capability("approval.set_rules")
        self._rule_for_call = coordinator.get_capability("approval.rule_for_call")
        self._allowed = self._project.state().get("rules", []) if remembers else []
        self.switch(self.mode)
        if remembers and self._set_rules is not None:
            coordinator.hooks.register(TOOL_PRE, self._read_again, name="cli-permissions")

    async def _read_again(self, event: str, data: dict[str, Any]) -> HookResult:
        """Apply changes of the permissions, which another process may have revoked."""
        allowed = (await anyio.to_thread.run_sync(self._project.state)).get("rules", [])
        if allowed != self._allowed:
            self._allowed = allowed
            self.switch(self.mode)
        return HookResult()

    def switch(self, mode: str | None = None) -> str:
        """Switch to a mode, by default to the next one, and return its description.

        Raises:
            CommandError: The mode is unknown, or the plan has no module for modes.
        """
        names = list(MODES)
        mode = mode or names[(names.index(self.mode) + 1) % len(names)]
        if mode not in MODES:
            raise CommandError(
                f"there is no mode {mode!r} ({', '.join(names)}){suggestion(mode, names)}"
            )
        if self._set_rules is not None:
            self._set_rules([*MODES[mode][1], *self._allowed])
        elif mode != "ask":
            raise CommandError("the plan has no hooks-approval, so there are no modes")
        self.mode = mode
        return f"mode {mode}: {MODES[mode][0]}"

    def offer(self, call: tuple[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
        """Return the rule that would allow such a call permanently, or None if there is none."""
        if call is None or self._rule_for_call is None:
            return None
        rule: dict[str, Any] | None = self._rule_for_call(*call)
        return rule

    def remember(self, rule: dict[str, Any]) -> None:
        """Store a rule for this project."""
        self._allowed = [*self._project.state().get("rules", []), rule]
        self._project.change(rules=self._allowed)
        self.switch(self.mode)


def rule_in_words(rule: Mapping[str, Any]) -> str:
    """Return a description of the calls that a stored rule allows."""
    if "command" in rule:
        where = " outside of a sandbox" if rule.get("sandboxed") is False else ""
        return f"the command {' '.join(rule['command'])!r}{where}"
    return f"edits of {rule['path']}" if "path" in rule else f"every call of {rule['tool']}"


# ── keys ──
# A file in the state folder has their names, so that the keyring is used only for existing keys.

_SERVICE = "amplifier"
_problems: dict[str, str] = {}
"""Problems with keys that could not be read, by name."""


def key_names() -> list[str]:
    """Return the names of the variables in the keyring."""
    try:
        return read_file(find_home() / "keys", most=1 << 20).decode().split()
    except FileNotFoundError:
        return []


def keep_key(name: str, value: str) -> None:
    """Store a key in the keyring.

    Raises:
        CommandError: The keyring failed.
        MissingExtraError: The library isn't installed.
    """
    with _keyring() as keyring:
        keyring.set_password(_SERVICE, name, value)
    _keep_names([*key_names(), name])


def remove_key(name: str) -> None:
    """Remove a key from the keyring, and its name even if the keyring has lost the key.

    Raises:
        CommandError: There is no key of that name, or the keyring failed.
    """
    names = key_names()
    if name not in names:
        raise CommandError(f"the keyring has no {name}; it has: {', '.join(names) or 'none'}")
    with _keyring() as keyring:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)
    _keep_names([other for other in names if other != name])


def load_keys() -> list[str]:
    """Add missing keys to the environment, where providers read them. Return the problems.

    Call it before an event loop runs, because a keyring may ask the user to unlock it. Each key is
    requested once.
    """
    for name in key_names():
        if os.environ.get(name) or name in _problems:
            continue
        try:
            with _keyring() as keyring:
                value = keyring.get_password(_SERVICE, name)
        except (CommandError, MissingExtraError) as error:
            _problems[name] = f"{name} is not read: {error}"
            continue
        if value is None:
            _problems[name] = (
                f"{name} is no longer in the keyring; set it again: amplifier keys set {name}"
            )
        else:
            os.environ[name] = value
    return list(_problems.values())


def _keep_names(names: list[str]) -> None:
    content = "".join(f"{name}\n" for name in dict.fromkeys(names))
    make_folders(find_home())
    replace_file(find_home() / "keys", content.encode())


@contextmanager
def _keyring() -> Iterator[ModuleType]:
    try:
        # It belongs to an extra.
        import keyring  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "keeping keys in the system's keyring", extra="cli", missing="keyring"
        ) from error
    try:
        yield keyring
    # Keyring backends are plug-ins and may raise anything.
    except Exception as error:
        raise CommandError(
            f"the keyring of this system refuses: {str(error) or type(error).__name__}"
        ) from error
