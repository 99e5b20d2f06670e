from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from amplifier.errors import ModuleLoadError
from amplifier.loading.discovery import find_package
from amplifier.loading.discovery import path_from_source as path_from_hint
from amplifier.loading.loader import _resolve_with as resolve_with
from tests.loading._forge import package, root, write

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
def test_a_path_or_a_file_uri_needs_no_resolver(hint, expected):
    assert path_from_hint(hint, "tool-x") == Path(expected)


def test_the_home_directory_is_expanded(monkeypatch):
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
def test_any_other_hint_is_a_resolvers_business(hint):
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
async def test_a_resolver_gets_the_hints_its_signature_takes(method, expected):
    assert await resolve_with(resolver_with(method), "tool-x", "new", "old") == Path(expected)


async def test_the_asynchronous_method_is_preferred():
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
async def test_a_resolver_may_answer_with_a_source_or_a_path(source):
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
    with pytest.raises(ModuleLoadError, match="expected a path or a source") as caught:
        await resolve_with(resolver_with(lambda module_id: answer), "tool-x", None, None)
    assert repr(answer) in str(caught.value)


# ── the package in a root ────────────────────────────────────────────────────────────────────────


def test_a_root_that_is_a_package_is_the_package(tmp_path):
    directory = package(tmp_path, "amplifier_module_tool_x")
    package(directory, "amplifier_module_inner")
    assert find_package(directory, "tool-x") == ("amplifier_module_tool_x", directory)


def test_a_root_that_cannot_be_imported_by_its_name_gets_the_conventional_one(tmp_path):
    directory = package(tmp_path, "tool-x@main")
    assert find_package(directory, "tool-x") == ("amplifier_module_tool_x", directory)


def test_the_conventional_package_wins_over_others(tmp_path):
    directory = root(tmp_path, "tool-x")
    package(directory, "amplifier_module_a")
    assert find_package(directory, "tool-x")[0] == "amplifier_module_tool_x"


def test_a_single_package_of_another_name_is_taken(tmp_path):
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
def test_a_root_without_the_package_is_refused(tmp_path, root_of, words, reason):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "file.py")
    for name in ("a", "b"):
        package(tmp_path / "several", f"amplifier_module_{name}")
    with pytest.raises(ModuleLoadError, match=words) as caught:
        find_package(tmp_path / root_of, "tool-x")
    assert caught.value.reason_code == reason
