"""Guesses the configuration of a module from the words of its source when its author gives none.

A provider that needs a key declines without one, and then nothing could be examined; a context that can keep a file should
be examined while it keeps one. So candidates are tried, and the first one with which the module mounts and runs its typical
operations is used for all checks. The report names the guessed settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from amplifier.conformance.inputs.server_process import SERVICE, is_served
from amplifier.conformance.target.literals import environment_in, inputs_in, settings_in
from amplifier.conformance.target.locate import LoadedTarget
from amplifier.conformance.target.mounted import CheckContext, MountFailed
from amplifier.conformance.target.resolver_samples import settings_for
from amplifier.conformance.target.use import typical_operations

SECRET = "conformance-secret-7f3a"
"""A value for keys; it is valid nowhere."""
NOWHERE = "http://127.0.0.1:9"
"""An address at which no server listens."""

_SECRETS = ("api_key", "apikey", "key", "token", "secret", "password", "credential")
_ADDRESSES = ("base_url", "api_base", "endpoint", "url")
_FILES = ("file", "path", "db", "database", "store", "storage", "journal")
_FOLDERS = ("dir", "directory", "folder", "root", "workspace", "path", "store", "storage")


async def find_working_config(ctx: CheckContext) -> LoadedTarget:
    """The module with the settings for all checks."""
    loaded = ctx.loaded
    works = await _works(ctx, loaded.config)
    wanted: list[dict[str, Any]] = []
    if loaded.module_type == "context":
        wanted = _placed(loaded)
    elif loaded.module_type == "provider" and _addresses(loaded, ""):
        wanted = _served(loaded)
    elif loaded.module_type == "resolver" and not works:
        wanted = settings_for(settings_in(loaded.target))
    if not works:
        set_environment(loaded)
        secrets = _secrets(loaded)
        wanted = [*wanted, secrets, {**secrets, **_addresses(loaded, NOWHERE), **_models(loaded)}]
    for candidate in wanted:
        config = {**candidate, **loaded.config}
        if config != loaded.config and await _works(ctx, config):
            return attrs.evolve(loaded, config=config, given=loaded.config if works else config)
    return loaded


async def _works(ctx: CheckContext, config: dict[str, Any]) -> bool:
    """Whether it mounts with these settings, and runs its typical operations."""
    module_type = ctx.loaded.module_type
    try:
        async with ctx.fresh().mount(config=config) as mounted:
            # A hook need not register anything.
            if mounted.instance is None and module_type not in ("hook", "resolver"):
                return False
            # Failing calls are a matter for the checks, except where the settings exist to make them work.
            if module_type not in ("context", "resolver") and not is_served(config):
                return True
            outcomes = [await mounted.call(each.run, mounted) for each in typical_operations(mounted)]
            if module_type == "resolver":
                return any(outcome.value is not None for outcome in outcomes)
            return all(outcome.returned for outcome in outcomes)
    except MountFailed:
        return False


# ── guesses ──


def _placed(loaded: LoadedTarget) -> list[dict[str, Any]]:
    """A file for every setting that looks like one, or a folder."""
    keys = list(dict.fromkeys([*settings_in(loaded.target), *inputs_in(loaded.target)]))
    files = {key: "{directory}/memory.jsonl" for key in keys if _is_one_of(key, _FILES)}
    folders = {key: "{directory}" for key in keys if _is_one_of(key, _FOLDERS)}
    return [candidate for candidate in ({**folders, **files}, {**files, **folders}) if candidate]


def _served(loaded: LoadedTarget) -> list[dict[str, Any]]:
    """The fake LLM server for every address, with keys for it."""
    no_retries = {key: 0 for key in settings_in(loaded.target) if key.lower() in ("max_retries", "retries")}
    enough = {**_secrets(loaded), **_addresses(loaded, f"{SERVICE}/auto"), **no_retries}
    return [enough, {**enough, **_models(loaded)}]


def _secrets(loaded: LoadedTarget) -> dict[str, Any]:
    return {key: SECRET for key in settings_in(loaded.target) if is_secret(key)}


def _models(loaded: LoadedTarget) -> dict[str, Any]:
    return {key: "test-model" for key in settings_in(loaded.target) if "model" in key.lower().split("_")}


def _addresses(loaded: LoadedTarget, address: str) -> dict[str, Any]:
    return {key: address for key in settings_in(loaded.target) if _is_one_of(key, _ADDRESSES)}


def _is_one_of(key: str, words: tuple[str, ...]) -> bool:
    parts = key.lower().replace("-", "_").split("_")
    return key.lower() in words or any(word in parts for word in words)


def is_secret(key: str) -> bool:
    """Whether a setting or variable of that name holds a key."""
    return _is_one_of(key, _SECRETS) and not _is_one_of(key, ("max", "min", "limit", "budget", "count"))


# ── the environment ──


def set_environment(loaded: LoadedTarget) -> None:
    """Set the environment variables in which it looks for keys."""
    for name in secret_variables(loaded):
        os.environ.setdefault(name, SECRET)


def secret_variables(loaded: LoadedTarget) -> list[str]:
    """The environment variables in which it looks for keys."""
    return [name for name in environment_in(loaded.target) if is_secret(name)]


@contextmanager
def without_secrets(loaded: LoadedTarget) -> Iterator[None]:
    """Unset those variables in the body."""
    saved = {name: os.environ.pop(name) for name in secret_variables(loaded) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)
