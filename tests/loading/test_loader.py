from __future__ import annotations

import builtins
import logging
import os
import shutil
import sys
import types

import pytest

from amplifier.errors import (
    DeadlineExceeded,
    ModuleConflictError,
    ModuleLoadError,
    ModuleNotFoundError,
)
from amplifier.kernel.session.opening import _failure_reason as module_failure_reason
from amplifier.loading import ModuleLoader
from amplifier.loading.loader import _resolve_with
from tests.loading._forge import MOUNT, Coordinator, distribution, package, root

NEVER_MOUNTED = (
    "async def mount(coordinator, config):\n    raise AssertionError('loading must not mount')\n"
)


async def mount_example(coordinator, config):
    return None


class Resolver:
    """Knows one place, or raises."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def resolve(self, module_id, source_hint=None, profile_hint=None):
        self.asked.append((module_id, source_hint, profile_hint))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


# ── registered in process ────────────────────────────────────────────────────────────────────────


async def test_registered_function_is_loaded():
    loader = ModuleLoader(modules={"tool-own": mount_example})
    plan_config = {"a": 1}
    loaded = await loader.load("tool-own", plan_config)
    assert loaded.module_id == "tool-own"
    assert loaded.mount is mount_example
    assert (loaded.module_type, loaded.mount_point) == ("tool", "tools")
    assert loaded.config == plan_config
    assert loaded.config is not plan_config
    assert (loaded.origin, loaded.path, loaded.on_session_ready) == (
        "registered in process",
        None,
        None,
    )
    assert (await loader.load("tool-own")).config == {}


async def test_kind_of_registration_is_optional():
    loader = ModuleLoader()
    loader.register("own", mount_example)
    assert (await loader.load("own")).module_type is None
    loader.register("own", mount_example, module_type="hook")
    assert (await loader.load("own")).module_type == "hook"
    loader.register("own", mount_example, module_type="widget")
    with pytest.raises(ModuleLoadError, match="'widget'"):
        await loader.load("own")


def test_id_cannot_be_registered_twice():
    loader = ModuleLoader(modules={"tool-own": mount_example})
    loader.register("tool-own", mount_example)
    with pytest.raises(ModuleConflictError, match="'tool-own' is already registered as"):
        loader.register("tool-own", print)
    with pytest.raises(ModuleLoadError, match="is not a module id"):
        ModuleLoader(modules={"../x": mount_example})


# ── ids and configuration ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [[], "x", 7])
async def test_configuration_must_be_mapping(config):
    with pytest.raises(TypeError, match="config of module 'tool-own' is"):
        await ModuleLoader(modules={"tool-own": mount_example}).load("tool-own", config)


# ── entry points ─────────────────────────────────────────────────────────────────────────────────


async def test_entry_point_is_loaded_but_not_mounted(site):
    distribution(site, "acme", {"tool-acme": "acme.sub:mount"}, version="1.2")
    package(site, "acme", "", sub=NEVER_MOUNTED + "async def on_session_ready(coordinator): pass\n")
    loaded = await ModuleLoader().load("tool-acme")
    assert loaded.mount is sys.modules["acme.sub"].mount
    assert loaded.on_session_ready is sys.modules["acme.sub"].on_session_ready
    assert loaded.origin == "entry point tool-acme of acme 1.2"
    assert loaded.path == site / "acme" / "sub.py"
    assert loaded.module_type == "tool"


async def test_entry_point_may_name_python_module(site):
    distribution(site, "acme", {"tool-acme": "acme"})
    package(site, "acme", "__amplifier_module_type__ = 'hook'\n" + MOUNT)
    loaded = await ModuleLoader().load("tool-acme")
    assert (loaded.mount, loaded.module_type) == (sys.modules["acme"].mount, "hook")
    assert loaded.path == site / "acme"


async def test_ready_callback_comes_from_defining_module(site):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    package(
        site,
        "acme",
        "from ._impl import mount\n",
        _impl=MOUNT + "async def on_session_ready(coordinator): pass\n",
    )
    loaded = await ModuleLoader().load("tool-acme")
    assert loaded.on_session_ready is sys.modules["acme._impl"].on_session_ready


async def test_hosting_package_declares_nothing(site):
    distribution(site, "acme", {"acme-thing": "acme.sub:mount"})
    package(
        site,
        "acme",
        "__amplifier_module_type__ = 'hook'\nasync def on_session_ready(c): pass\n",
        sub=MOUNT,
    )
    loaded = await ModuleLoader().load("acme-thing")
    assert (loaded.module_type, loaded.on_session_ready) == (None, None)


async def test_synchronous_callback_warns_at_every_load(site, caplog):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    package(site, "acme", MOUNT + "def on_session_ready(coordinator): pass\n")
    for expected in (1, 2):
        assert (await ModuleLoader().load("tool-acme")).on_session_ready is None
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == expected
    assert "'tool-acme' (entry point tool-acme of acme 1.0): on_session_ready is" in caplog.text


async def test_replaced_mount_and_reimported_module_are_noticed(site, monkeypatch):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    package(site, "acme")
    first = await ModuleLoader().load("tool-acme")
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["acme"], "mount", mount_example)
        assert (await ModuleLoader().load("tool-acme")).mount is mount_example
    del sys.modules["acme"]
    second = await ModuleLoader().load("tool-acme")
    assert second.mount is sys.modules["acme"].mount
    assert second.mount is not first.mount


async def test_loader_notices_installation_and_removal(site):
    loader = ModuleLoader()
    with pytest.raises(ModuleNotFoundError):
        await loader.load("tool-acme")
    package(site, "acme")
    metadata = distribution(site, "acme", {"tool-acme": "acme:mount"})
    assert (await loader.load("tool-acme")).origin == "entry point tool-acme of acme 1.0"
    shutil.rmtree(metadata)
    with pytest.raises(ModuleNotFoundError):
        await loader.load("tool-acme")


BROKEN_ENTRY_POINTS = {
    "absent module": ("surely_absent:mount", "surely_absent", "validation_failed"),
    "absent dependency": ("acme.needy:mount", "surely_not_installed", "validation_failed"),
    "absent attribute": ("acme:nothing", "has no 'nothing'", "invalid_entry_point"),
    "process exit": ("acme.leaving:mount", "SystemExit", "validation_failed"),
}


@pytest.mark.parametrize(
    ("value", "words", "reason"), BROKEN_ENTRY_POINTS.values(), ids=BROKEN_ENTRY_POINTS
)
async def test_broken_entry_point_is_not_missing(site, value, words, reason):
    distribution(site, "acme", {"tool-x": value})
    package(
        site,
        "acme",
        "",
        needy="import surely_not_installed\n",
        leaving="import sys\nsys.exit()\n",
    )
    with pytest.raises(ModuleLoadError, match=words) as caught:
        await ModuleLoader().load("tool-x")
    assert caught.value.reason_code == reason
    assert caught.value.module_id == "tool-x"
    assert (caught.value.__cause__ is not None) == (reason == "validation_failed")
    assert "acme" not in sys.modules


# ── search paths and the conventional package ────────────────────────────────────────────────────


async def test_module_on_search_path_is_loaded(tmp_path, make_loader):
    checkout = root(tmp_path, "hooks-tool-x", NEVER_MOUNTED)
    loaded = await make_loader(search_paths=[str(tmp_path)]).load("hooks-tool-x")
    assert loaded.module_type == "hook"
    assert loaded.path == checkout / "amplifier_module_hooks_tool_x"
    assert loaded.origin == f"path {checkout}"


async def test_repeated_search_path_lists_modules_once(tmp_path, make_loader, monkeypatch):
    root(tmp_path, "tool-x")
    monkeypatch.setenv("AMPLIFIER_MODULES", os.pathsep.join([str(tmp_path), str(tmp_path)]))
    assert [module.id for module in await make_loader().discover() if module.id == "tool-x"] == [
        "tool-x"
    ]


class Builtin:
    """A resolver whose method is written in C, so that Python cannot read its signature."""

    def __init__(self, path: str) -> None:
        self.paths: dict[str, str] = {}
        self.resolve = self.paths.pop
        self.path = path


async def test_resolver_without_readable_signature(tmp_path):
    resolver = Builtin(str(tmp_path))
    assert await _resolve_with(resolver, "tool-x", None, str(tmp_path)) == tmp_path


async def test_conventional_package_is_last_resort(site):
    package(site, "amplifier_module_tool_x")
    loaded = await ModuleLoader().load("tool-x")
    assert loaded.origin == "package amplifier_module_tool_x"
    assert loaded.path == site / "amplifier_module_tool_x"


async def test_package_hidden_by_stale_listing_is_found(site):
    with pytest.raises(ModuleNotFoundError):
        await ModuleLoader().load("tool-x")
    status = site.stat()
    package(site, "amplifier_module_tool_x")
    os.utime(
        site, ns=(status.st_atime_ns, status.st_mtime_ns)
    )  # as a file system with a coarse clock would show it
    assert (await ModuleLoader().load("tool-x")).path == site / "amplifier_module_tool_x"


async def test_embedder_made_python_module_is_found(
    monkeypatch,
):
    module = types.ModuleType("amplifier_module_tool_x")
    vars(module)["mount"] = mount_example
    monkeypatch.setitem(sys.modules, "amplifier_module_tool_x", module)
    assert (await ModuleLoader().load("tool-x")).mount is mount_example


async def test_source_does_not_leak_between_loaders(tmp_path, make_loader):
    checkout = root(tmp_path, "tool-x")
    await make_loader().load("tool-x", source_hint=checkout)
    assert str(checkout) in sys.path
    with pytest.raises(
        ModuleNotFoundError,
        match="not used, because it was imported from the source of another loader",
    ):
        await make_loader().load("tool-x")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keyword", ["source_hint", "profile_source"])
@pytest.mark.parametrize(
    "form", [str, lambda path: path, lambda path: path.as_uri()], ids=["str", "Path", "uri"]
)
async def test_path_without_resolver_is_loaded_directly(tmp_path, make_loader, keyword, form):
    checkout = root(tmp_path, "tool-x")
    loaded = await make_loader(modules={"tool-x": mount_example}).load(
        "tool-x", **{keyword: form(checkout)}
    )
    assert loaded.path == checkout / "amplifier_module_tool_x"


async def test_resolver_comes_first_and_gets_both_hints(tmp_path, make_loader):
    checkout = root(tmp_path, "tool-x")
    resolver = Resolver(checkout)
    loader = make_loader(Coordinator(resolver), modules={"tool-x": mount_example})
    loaded = await loader.load("tool-x", None, "new", "old")
    assert loaded.path == checkout / "amplifier_module_tool_x"
    await loader.load("tool-x", source_hint="one")
    await loader.load("tool-x", profile_source="one")
    await loader.load("tool-x")
    assert resolver.asked == [
        ("tool-x", "new", "old"),
        ("tool-x", "one", "one"),
        ("tool-x", "one", "one"),
        ("tool-x", None, None),
    ]


async def test_coordinator_set_later_or_per_load(tmp_path, make_loader):
    checkout = root(tmp_path, "tool-x")
    loader = make_loader()
    assert (
        await loader.load("tool-x", coordinator=Coordinator(Resolver(checkout)))
    ).path is not None
    loader.coordinator = Coordinator(Resolver(checkout))
    assert (await loader.load("tool-x")).path is not None


class ForeignNotFound(Exception):
    pass


ForeignNotFound.__name__ = "ModuleNotFoundError"
DerivedNotFound = type("GitModuleMissing", (ForeignNotFound,), {})


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError, builtins.ModuleNotFoundError, ForeignNotFound, DerivedNotFound]
)
async def test_module_unknown_to_resolver_is_searched_directly(error, caplog):
    loader = ModuleLoader(
        Coordinator(Resolver(error("unknown here"))), modules={"tool-x": mount_example}
    )
    assert (await loader.load("tool-x", None, "git+https://example.org/x")).mount is mount_example
    assert "WARNING" not in caplog.text


async def test_resolver_lacking_package_is_warned_about(caplog):
    error = builtins.ModuleNotFoundError("No module named 'git'", name="git")
    loader = ModuleLoader(Coordinator(Resolver(error)), modules={"tool-x": mount_example})
    assert (await loader.load("tool-x")).mount is mount_example
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No module named 'git'" in caplog.text


async def test_unknown_module_error_names_all_places(tmp_path):
    error = ModuleNotFoundError("nothing in the workspace", searched=["workspace /w", "cache /c"])
    loader = ModuleLoader(Coordinator(Resolver(error)), [tmp_path / "search"])
    with pytest.raises(ModuleNotFoundError) as caught:
        await loader.load("tool-x")
    assert caught.value.__cause__ is error
    assert caught.value.searched == (
        "resolver Resolver: nothing in the workspace",
        "workspace /w",
        "cache /c",
        "entry points of group 'amplifier.modules'",
        f"search path {tmp_path / 'search'} (no such directory)",
        "package 'amplifier_module_tool_x'",
    )
    for place in caught.value.searched:
        assert f"\n  - {place}" in str(caught.value)


async def test_other_resolver_errors_propagate():
    for error in (
        PermissionError("no"),
        ImportError("no"),
        ModuleLoadError("cloned, but broken"),
        ValueError("hint"),
    ):
        with pytest.raises(type(error)) as caught:
            await ModuleLoader(
                Coordinator(Resolver(error)), modules={"tool-x": mount_example}
            ).load("tool-x")
        assert caught.value is error


async def test_missing_source_counts_like_unknown_module():
    class Source:
        async def resolve(self):
            raise ModuleNotFoundError("the clone is gone")

    loader = ModuleLoader(Coordinator(Resolver(Source())), modules={"tool-x": mount_example})
    assert (await loader.load("tool-x")).mount is mount_example


# ── sys.path ─────────────────────────────────────────────────────────────────────────────────────


async def test_root_is_importable_while_loaders_live(tmp_path, make_loader):
    checkout = root(tmp_path, "tool-x", "import beside_x\n" + MOUNT, beside_x="", lazy_x="")
    one, two = make_loader(), make_loader()
    await one.load("tool-x", source_hint=checkout)
    await one.load("tool-x", source_hint=checkout)
    await two.load("tool-x", source_hint=checkout)
    assert "1 sys.path entries held" in repr(one)
    assert sys.path[-1] == str(checkout)
    assert sys.path.count(str(checkout)) == 1
    one.cleanup()
    one.cleanup()
    __import__("lazy_x")
    two.cleanup()
    assert str(checkout) not in sys.path
    await one.load("tool-x", source_hint=checkout)
    assert str(checkout) in sys.path


async def test_root_package_needs_no_entry(tmp_path, make_loader):
    directory = package(tmp_path, "amplifier_module_tool_x")
    before = list(sys.path)
    loaded = await make_loader().load("tool-x", source_hint=directory)
    assert (sys.path, loaded.path) == (before, directory)


@pytest.mark.parametrize(
    "body", ["raise RuntimeError\n", "number = 7\n", "mount = 7\n", "import sys\nsys.exit()\n"]
)
async def test_failed_load_leaves_nothing_behind(tmp_path, body):
    checkout = root(tmp_path, "tool-x", "import beside_x\n" + body, beside_x="")
    before = list(sys.path), set(sys.modules)
    loader = ModuleLoader()
    with pytest.raises(ModuleLoadError):
        await loader.load("tool-x", source_hint=checkout)
    assert (list(sys.path), set(sys.modules)) == before
    assert repr(loader) == "<ModuleLoader 0 registered, 0 loaded, 0 sys.path entries held>"


async def test_failed_load_keeps_shared_entry(tmp_path, make_loader):
    package(tmp_path, "amplifier_module_tool_a")
    package(tmp_path, "amplifier_module_tool_b", "raise RuntimeError\n")
    loader = make_loader()
    await loader.load("tool-a", source_hint=tmp_path)
    with pytest.raises(ModuleLoadError):
        await loader.load("tool-b", source_hint=tmp_path)
    assert str(tmp_path) in sys.path


# ── nothing found ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known_by", ["registration", "entry point", "search path"])
async def test_not_found_error_names_places_and_suggestion(site, tmp_path, known_by):
    search = tmp_path / "search"
    search.mkdir()
    modules = {}
    if known_by == "registration":
        modules["tool-bash"] = mount_example
    elif known_by == "entry point":
        distribution(site, "acme", {"tool-bash": "acme:mount"})
    else:
        root(search, "tool-bash")
    with pytest.raises(
        ModuleNotFoundError, match=r"no module 'tool-bsh' was found; did you mean 'tool-bash'\?"
    ) as caught:
        await ModuleLoader(search_paths=[search], modules=modules).load("tool-bsh")
    assert isinstance(caught.value, builtins.ModuleNotFoundError)
    assert (caught.value.module_id, caught.value.suggestion) == ("tool-bsh", "tool-bash")
    assert f"search path {search}" in caught.value.searched
    assert "package 'amplifier_module_tool_bsh'" in caught.value.searched


@pytest.mark.parametrize("wanted", ["quite-different", "tool-nope"])  # all tools begin alike
async def test_not_found_suggests_nothing_far_off(wanted):
    with pytest.raises(
        ModuleNotFoundError, match=rf"no module '{wanted}' was found\. Looked in:"
    ) as caught:
        await ModuleLoader(modules={"tool-bash": mount_example}).load(wanted)
    assert caught.value.suggestion is None
    assert "1 modules registered in process" in caught.value.searched
    assert "search paths (none given, and AMPLIFIER_MODULES names none)" in caught.value.searched


async def test_removed_provider_error_names_replacement():
    with pytest.raises(
        ModuleNotFoundError,
        match=r"no module 'provider-local' was found; provider-local was removed: .*base_url",
    ):
        await ModuleLoader().load("provider-local")


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


async def test_import_hook_precedes_first_import(site, tmp_path, make_loader):
    distribution(site, "acme", {"tool-acme": "acme.sub:mount"})
    package(site, "acme", "", sub=MOUNT)
    package(site, "amplifier_module_tool_y")
    heard = []
    loader = make_loader()
    loader.import_hook = lambda name: heard.append((name, name in sys.modules))
    for _ in range(2):
        await loader.load("tool-acme")
        await loader.load("tool-x", source_hint=root(tmp_path, "tool-x"))
        await loader.load("tool-y")
    assert heard == [
        ("acme.sub", False),
        ("amplifier_module_tool_x", False),
        ("amplifier_module_tool_y", False),
    ]


class Forged(Exception):
    reason_code = "conflict"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleLoadError("x", reason_code="invalid_entry_point"), "invalid_entry_point"),
        (ModuleConflictError("x"), "conflict"),
        (ModuleNotFoundError("x"), "missing_source"),
        (DeadlineExceeded("x"), "deadline"),
        (Forged(), "unknown"),
        (builtins.ModuleNotFoundError("x"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
)
def test_only_own_errors_carry_reason(error, reason):
    assert module_failure_reason(error) == reason


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("amplifier.toml", '[module]\ntransport = "grpc"\n', "a module that is a gRPC service"),
        ("amplifier.toml", '[module]\ntransport = "wasm"\n', "a WebAssembly module"),
        ("amplifier.toml", '[module]\ntransport = "rust"\n', "a module in a sidecar program"),
        ("tool.wasm", "", "a WebAssembly module"),
    ],
)
async def test_module_in_other_language_is_refused(tmp_path, make_loader, file, text, kind):
    (tmp_path / file).write_text(text)
    with pytest.raises(
        ModuleLoadError, match=f"holds {kind}, but only Python modules are loaded here"
    ):
        await make_loader().load("tool-other", source_hint=str(tmp_path))


async def test_python_module_may_have_manifest(tmp_path, make_loader):
    package = tmp_path / "amplifier_module_tool_with_manifest"
    package.mkdir()
    (package / "__init__.py").write_text("async def mount(coordinator, config=None): ...\n")
    (tmp_path / "amplifier.toml").write_text('[module]\ntransport = "python"\n')
    assert (
        await make_loader().load("tool-with-manifest", source_hint=str(tmp_path))
    ).module_id == "tool-with-manifest"
