from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from amplifier.errors import ModuleLoadError
from amplifier.loading import ModuleLoader
from amplifier.loading.discovery import find_package
from amplifier.loading.discovery import path_from_source as path_from_hint
from amplifier.loading.loader import _resolve_with as resolve_with
from tests.loading._forge import MOUNT, package, root, write

# ── hints ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("./a", "a"),
        (Path("/a"), "/a"),
        (PurePosixPath("/a"), "/a"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:///a", "/a"),
        ("file:///a%20b", "/a b"),
        ("file:a/b", "a/b"),
        ("/a#b", "/a#b"),
    ],
)
def test_path_or_file_uri_needs_no_resolver(hint, expected):
    assert path_from_hint(hint, "tool-x") == Path(expected)


def test_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/user")
    assert path_from_hint("~/x", "tool-x") == Path("/home/user/x")


@pytest.mark.parametrize(
    "hint",
    [
        "git+https://example.org/x.git",
        "https://example.org/x",
        "package:x",
        "file://elsewhere/a",
        "file:///a#subdirectory=b",
        "file:///a?b",
        "file:",
        "",
        "a\0b",
        {"git": "x"},
        7,
        b"/a",
    ],
)
def test_other_hints_are_left_to_resolvers(hint):
    with pytest.raises(
        ModuleLoadError, match="mount a resolver at 'module-source-resolver'"
    ) as caught:
        path_from_hint(hint, "tool-x")
    assert repr(hint) in str(caught.value)
    assert caught.value.reason_code == "missing_source"


# ── resolvers ────────────────────────────────────────────────────────────────────────────────────


def resolver_with(method, name="resolve"):
    return type("Resolver", (), {name: staticmethod(method)})()


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (lambda module_id, profile_hint=None: f"/{profile_hint}", "/old"),
        (lambda module_id, source_hint=None: f"/{source_hint}", "/new"),
        (
            lambda module_id, source_hint=None, profile_hint=None: f"/{source_hint}/{profile_hint}",
            "/new/old",
        ),
        (lambda module_id, *, profile_hint: f"/{profile_hint}", "/old"),
        (lambda module_id, hint=None: f"/{hint}", "/old"),
        (lambda module_id, hint, /: f"/{hint}", "/old"),
        (lambda module_id, *hints: f"/{hints[0]}", "/old"),
        (lambda module_id, **hints: "/" + "/".join(sorted(hints.values())), "/new/old"),
        (lambda module_id: f"/{module_id}", "/tool-x"),
    ],
)
async def test_resolver_gets_hints_of_its_signature(method, expected):
    assert await resolve_with(resolver_with(method), "tool-x", "new", "old") == Path(expected)


async def test_asynchronous_method_is_preferred():
    class Resolver:
        def resolve(self, module_id):
            raise AssertionError("the other one was to be called")

        async def async_resolve(self, module_id, source_hint=None, profile_hint=None):
            return Path("/asynchronous")

    assert await resolve_with(Resolver(), "tool-x", None, None) == Path("/asynchronous")


class SyncSource:
    def resolve(self):
        return Path("/from/source")


class AsyncSource:
    async def resolve(self):
        return "/from/source"


@pytest.mark.parametrize(
    "source", [SyncSource(), AsyncSource(), Path("/from/source"), "/from/source"]
)
async def test_resolver_returns_source_or_path(source):
    async def async_resolve(module_id):
        return source

    assert await resolve_with(
        resolver_with(lambda module_id: source), "tool-x", None, None
    ) == Path("/from/source")
    asynchronous = resolver_with(async_resolve, "async_resolve")
    assert await resolve_with(asynchronous, "tool-x", None, None) == Path("/from/source")


@pytest.mark.parametrize(
    "answer", [None, 7, b"/bytes", resolver_with(lambda: None), resolver_with(lambda: 7)]
)
async def test_any_other_answer_is_refused(answer):
    with pytest.raises(ModuleLoadError, match="expected a path, a source with a resolve") as caught:
        await resolve_with(resolver_with(lambda module_id: answer), "tool-x", None, None)
    assert repr(answer) in str(caught.value)


# ── the package in a root ────────────────────────────────────────────────────────────────────────


def test_root_package_is_found(tmp_path):
    directory = package(tmp_path, "amplifier_module_tool_x")
    package(directory, "amplifier_module_inner")
    assert find_package(directory, "tool-x") == ("amplifier_module_tool_x", directory)


def test_unimportable_root_gets_conventional_name(tmp_path):
    directory = package(tmp_path, "tool-x@main")
    assert find_package(directory, "tool-x") == ("amplifier_module_tool_x", directory)


def test_conventional_package_wins_over_others(tmp_path):
    directory = root(tmp_path, "tool-x")
    package(directory, "amplifier_module_a")
    assert find_package(directory, "tool-x")[0] == "amplifier_module_tool_x"


def test_single_package_of_other_name_is_found(tmp_path):
    inner = package(tmp_path, "amplifier_module_other")
    write(tmp_path / "amplifier_module_no_package" / "data.txt")
    assert find_package(tmp_path, "tool-x") == ("amplifier_module_other", inner)


@pytest.mark.parametrize(
    ("root_of", "words", "reason"),
    [
        ("several", "it holds amplifier_module_a, amplifier_module_b", "invalid_package_layout"),
        ("empty", "has no package 'amplifier_module_tool_x'", "invalid_package_layout"),
        ("absent", "absent does not exist", "missing_source"),
        ("file.py", r"file\.py is not a directory", "missing_source"),
    ],
)
def test_root_without_package_is_refused(tmp_path, root_of, words, reason):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "file.py")
    for name in ("a", "b"):
        package(tmp_path / "several", f"amplifier_module_{name}")
    with pytest.raises(ModuleLoadError, match=words) as caught:
        find_package(tmp_path / root_of, "tool-x")
    assert caught.value.reason_code == reason


# ── once for all sessions ────────────────────────────────────────────────────────────────────────


def settle(directory: Path) -> None:
    """Make everything old, so that the next change shows."""
    for place in (directory, *directory.rglob("*")):
        os.utime(place, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    directory = root(tmp_path, "tool-kept")
    settle(directory)
    yield directory
    sys.modules.pop("amplifier_module_tool_kept", None)


def test_module_in_a_directory_is_examined_once(checkout):
    user, loader, other = object(), ModuleLoader(), ModuleLoader()
    first = loader.find("tool-kept", str(checkout))
    other.acquire(user)
    assert other.find("tool-kept", str(checkout), user=user) is first
    loader.cleanup()
    # Each session holds the root for itself.
    assert str(checkout) in sys.path
    other.release(user)
    assert str(checkout) not in sys.path


def make_service(checkout: Path) -> None:
    shutil.rmtree(checkout / "amplifier_module_tool_kept")
    write(checkout / "amplifier.toml", "[module]\ntransport = 'grpc'\n")


def add_package(checkout: Path) -> None:
    name = "amplifier_module_tool_kept"
    (checkout / name).rename(checkout / "amplifier_module_tool_renamed")
    write(checkout / "amplifier_module_tool_other" / "__init__.py", MOUNT)


@pytest.mark.parametrize("change", [shutil.rmtree, make_service, add_package])
def test_changed_directory_is_noticed(checkout, change):
    loader = ModuleLoader()
    loader.find("tool-kept", str(checkout))
    change(checkout)
    with pytest.raises(ModuleLoadError):
        loader.find("tool-kept", str(checkout))
    loader.cleanup()


def test_changed_manifest_is_noticed(checkout):
    write(checkout / "amplifier.toml", "[module]\ntransport = 'python'\n")
    settle(checkout)
    loader = ModuleLoader()
    loader.find("tool-kept", str(checkout))
    # In place, so that the directory itself does not change.
    write(checkout / "amplifier.toml", "[module]\ntransport = 'grpc'\n")
    with pytest.raises(ModuleLoadError, match="gRPC"):
        loader.find("tool-kept", str(checkout))
    loader.cleanup()


def test_module_that_was_imported_anew_is_examined_anew(checkout):
    loader = ModuleLoader()
    first = loader.find("tool-kept", str(checkout))
    del sys.modules["amplifier_module_tool_kept"]
    second = loader.find("tool-kept", str(checkout))
    assert second.mount is sys.modules["amplifier_module_tool_kept"].mount
    assert second.mount is not first.mount
    loader.cleanup()
