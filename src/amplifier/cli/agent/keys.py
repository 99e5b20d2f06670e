"""Keys in the system's keyring, read where the environment has none. A file of the state folder has their names, so that nothing else asks the keyring."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from amplifier._regular_file import make_folders, read_file, replace_file
from amplifier.cli.core.exit_codes import CommandError
from amplifier.cli.sessions.home_folder import find_home
from amplifier.errors import MissingExtraError

_SERVICE = "amplifier"
_problems: dict[str, str] = {}
"""Of the keys that could not be read."""


def key_names() -> list[str]:
    """The names of the variables whose values are in the keyring."""
    try:
        return read_file(find_home() / "keys", most=1 << 20).decode().split()
    except FileNotFoundError:
        return []


def keep_key(name: str, value: str) -> None:
    """Put a key into the keyring.

    Raises:
        CommandError: The keyring refuses.
        MissingExtraError: The library is not installed.
    """
    with _keyring() as keyring:
        keyring.set_password(_SERVICE, name, value)
    _keep_names([*key_names(), name])


def remove_key(name: str) -> None:
    """Remove a key from the keyring; the name is forgotten even if the keyring has lost it.

    Raises:
        CommandError: There is no key of that name, or the keyring refuses.
    """
    names = key_names()
    if name not in names:
        raise CommandError(f"the keyring has no {name}; it has: {', '.join(names) or 'none'}")
    with _keyring() as keyring:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)
    _keep_names([each for each in names if each != name])


def load_keys() -> list[str]:
    """Put the keys that the environment lacks into it, where providers look for them; returns what went wrong, in words.

    Called before an event loop runs, because a keyring may ask the user to unlock it; each key is asked for once.
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
            _problems[name] = f"{name} is not in the keyring any more; set it again: amplifier keys set {name}"
        else:
            os.environ[name] = value
    return list(_problems.values())


def _keep_names(names: list[str]) -> None:
    make_folders(find_home())
    replace_file(find_home() / "keys", "".join(f"{name}\n" for name in dict.fromkeys(names)).encode())


@contextmanager
def _keyring() -> Iterator[ModuleType]:
    try:
        import keyring  # noqa: PLC0415  # belongs to an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("keeping keys in the system's keyring", extra="keys", missing="keyring") from error
    try:
        yield keyring
    except Exception as error:  # backends are plug-ins
        raise CommandError(f"the keyring of this system refuses: {str(error) or type(error).__name__}") from error
