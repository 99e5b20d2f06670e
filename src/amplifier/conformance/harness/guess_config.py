"""What to mount a module with when its author does not say: settings guessed from the words of its source.

A provider that wants a key declines without one, and then nothing could be said about it; a context that can keep a file
should be seen keeping one. So candidates are tried, and the first with which the module mounts and does its ordinary work
is used for the whole examination. What is guessed is reported. Above stands the runner; below stand the mounted and the
typical_operations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from amplifier.conformance.harness.llm_server_process import SERVICE, is_served
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule, MountFailed
from amplifier.conformance.harness.resolver_sources import settings_for
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.load import LoadedSubject
from amplifier.conformance.target.source_literals import environment_in, inputs_in, settings_in

SECRET = "conformance-secret-7f3a"
"""Given wherever a key is wanted; it opens nothing."""
NOWHERE = "http://127.0.0.1:9"
"""An address that nobody listens at."""

_SECRETS = ("api_key", "apikey", "key", "token", "secret", "password", "credential")
_ADDRESSES = ("base_url", "api_base", "endpoint", "url")
_FILES = ("file", "path", "db", "database", "store", "storage", "journal")
_FOLDERS = ("dir", "directory", "folder", "root", "workspace", "path", "store", "storage")
_COUNTS = ("max", "min", "limit", "size", "count", "tokens", "timeout", "seconds", "window", "budget", "retries")
_MOST_MISSING = 8


async def find_working_config(ctx: CheckContext) -> LoadedSubject:
    """The subject with the settings that it is to be examined with."""
    loaded = ctx.loaded
    works = await _works(ctx, loaded.config)
    wanted: list[dict[str, Any]] = []
    if loaded.module_type == "context":
        wanted = _placed(loaded)
    elif loaded.module_type == "provider" and _addresses(loaded, ""):
        wanted = _served(loaded)
    elif loaded.module_type == "resolver" and not works:
        wanted = settings_for(settings_in(loaded.subject))
    if not works:
        set_environment(loaded)
        wanted = [*wanted, *_enough(loaded)]
    for candidate in wanted:
        config = {**candidate, **loaded.config}
        if config != loaded.config and await _works(ctx, config):
            return attrs.evolve(loaded, config=config, given=loaded.config if works else config)
    return await _supplied(ctx, works)


async def _supplied(ctx: CheckContext, works: bool) -> LoadedSubject:
    """As it is, or with what it complains to miss, one setting after the other."""
    loaded = ctx.loaded
    config = dict(loaded.config)
    for _ in range(0 if works else _MOST_MISSING):
        missing = await _missing(ctx, config)
        if missing is None or missing in config:
            break
        config[missing] = _guess(missing)
        if await _works(ctx, config):
            return attrs.evolve(loaded, config=config, given=config)
    return loaded


async def _works(ctx: CheckContext, config: dict[str, Any]) -> bool:
    """Whether it mounts with these settings, and does something ordinary without raising."""
    trial = attrs.evolve(ctx, faults=[], notes=[])
    try:
        async with trial.mount(config=config) as mounted:
            return _stands(mounted) and await _does_something(mounted, config)
    except MountFailed:
        return False


def _stands(mounted: MountedModule) -> bool:
    if mounted.loaded.module_type in ("hook", "resolver"):
        return True  # whether it registers anything is its own affair
    return mounted.instance is not None


async def _does_something(mounted: MountedModule, config: dict[str, Any]) -> bool:
    """Whether what it was given for is done: files are written, a service is understood."""
    if mounted.loaded.module_type == "resolver":  # it finds a module that is there
        return any([(await mounted.call(each.run, mounted)).value is not None for each in typical_operations(mounted)])
    if mounted.loaded.module_type != "context" and not is_served(config):
        return True  # that calls fail is what is to be seen
    outcomes = [await mounted.call(each.run, mounted) for each in typical_operations(mounted)]
    return all(outcome.returned for outcome in outcomes)


async def _missing(ctx: CheckContext, config: dict[str, Any]) -> str | None:
    try:
        async with attrs.evolve(ctx, faults=[], notes=[]).mount(config=config):
            return None
    except MountFailed as failed:
        error = failed.outcome.error
        return error.args[0] if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str) else None


# ── guesses ──


def _placed(loaded: LoadedSubject) -> list[dict[str, Any]]:
    """A file for every setting that looks like one, or a folder."""
    keys = list(dict.fromkeys([*settings_in(loaded.subject), *inputs_in(loaded.subject)]))
    files = {key: "{directory}/memory.jsonl" for key in keys if _is_one_of(key, _FILES)}
    folders = {key: "{directory}" for key in keys if _is_one_of(key, _FOLDERS)}
    return [candidate for candidate in ({**folders, **files}, {**files, **folders}) if candidate]


def _served(loaded: LoadedSubject) -> list[dict[str, Any]]:
    """Our service for every address, with keys to it."""
    keys = settings_in(loaded.subject)
    secrets = {key: SECRET for key in keys if is_secret(key)}
    models = {key: "test-model" for key in keys if "model" in key.lower().split("_")}
    patience = {key: 0 for key in keys if key.lower() in ("max_retries", "retries")}
    addresses = _addresses(loaded, f"{SERVICE}/auto")
    return [{**secrets, **addresses, **patience}, {**secrets, **models, **addresses, **patience}]


def _enough(loaded: LoadedSubject) -> list[dict[str, Any]]:
    """A value for every setting that can be guessed by its name: keys alone, then keys and addresses."""
    keys = settings_in(loaded.subject)
    secrets = {key: SECRET for key in keys if is_secret(key)}
    addresses = _addresses(loaded, NOWHERE)
    models = {key: "test-model" for key in keys if "model" in key.lower()}
    found = [secrets, {**secrets, **addresses}, {**secrets, **addresses, **models}]
    return [candidate for number, candidate in enumerate(found) if candidate not in found[:number]]


def _addresses(loaded: LoadedSubject, address: str) -> dict[str, Any]:
    return {key: address for key in settings_in(loaded.subject) if _is_one_of(key, _ADDRESSES)}


def _guess(key: str) -> Any:
    if is_secret(key):
        return SECRET
    if _is_one_of(key, _ADDRESSES):
        return NOWHERE
    if _is_one_of(key, _FILES):
        return "{directory}/given.txt"
    if _is_one_of(key, _FOLDERS):
        return "{directory}"
    return 1000 if _is_one_of(key, _COUNTS) else "text"


def _is_one_of(key: str, words: tuple[str, ...]) -> bool:
    parts = key.lower().replace("-", "_").split("_")
    return key.lower() in words or any(word in parts for word in words)


def is_secret(key: str) -> bool:
    """Whether a setting or variable of that name holds a key."""
    return _is_one_of(key, _SECRETS) and not _is_one_of(key, ("max", "min", "limit", "budget", "count"))


# ── the environment ──


def set_environment(loaded: LoadedSubject) -> None:
    """Give a value to the environment variables that it looks for its keys in."""
    for name in secret_variables(loaded):
        os.environ.setdefault(name, SECRET)


def secret_variables(loaded: LoadedSubject) -> list[str]:
    """The environment variables in which it looks for keys."""
    return [name for name in environment_in(loaded.subject) if is_secret(name)]


@contextmanager
def without_secrets(loaded: LoadedSubject) -> Iterator[None]:
    """Take those variables away for a while."""
    saved = {name: os.environ.pop(name) for name in secret_variables(loaded) if name in os.environ}
    try:
        yield
    finally:
        with suppress(OSError):
            os.environ.update(saved)
