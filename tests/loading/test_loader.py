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


async def test_a_registered_function_is_loaded():
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


async def test_a_kind_can_be_given_at_registration_or_stay_open():
    loader = ModuleLoader()
    loader.register("own", mount_example)
    assert (await loader.load("own")).module_type is None
    loader.register("own", mount_example, module_type="hook")
    assert (await loader.load("own")).module_type == "hook"
    loader.register("own", mount_example, module_type="widget")
    with pytest.raises(ModuleLoadError, match="'widget'"):
        await loader.load("own")


def test_one_id_cannot_be_registered_for_two_things():
    loader = ModuleLoader(modules={"tool-own": mount_example})
    loader.register("tool-own", mount_example)
    with pytest.raises(ModuleConflictError, match="'tool-own' is already registered as"):
        loader.register("tool-own", print)
    with pytest.raises(ModuleLoadError, match="is not a module id"):
        ModuleLoader(modules={"../x": mount_example})


# ── ids and configuration ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [[], "x", 7])
async def test_a_configuration_that_is_no_mapping_is_refused(config):
    with pytest.raises(TypeError, match="config of module 'tool-own' is"):
        await ModuleLoader(modules={"tool-own": mount_example}).load("tool-own", config)


# ── entry points ─────────────────────────────────────────────────────────────────────────────────


async def test_an_entry_point_is_loaded_and_not_mounted(site):
    distribution(site, "acme", {"tool-acme": "acme.sub:mount"}, version="1.2")
    package(site, "acme", "", sub=NEVER_MOUNTED + "async def on_session_ready(coordinator): pass\n")
    loaded = await ModuleLoader().load("tool-acme")
    assert loaded.mount is sys.modules["acme.sub"].mount
    assert loaded.on_session_ready is sys.modules["acme.sub"].on_session_ready
    assert loaded.origin == "entry point tool-acme of acme 1.2"
    assert loaded.path == site / "acme" / "sub.py"
    assert loaded.module_type == "tool"


async def test_an_entry_point_may_name_a_python_module(site):
    distribution(site, "acme", {"tool-acme": "acme"})
    package(site, "acme", "__amplifier_module_type__ = 'hook'\n" + MOUNT)
    loaded = await ModuleLoader().load("tool-acme")
    assert (loaded.mount, loaded.module_type) == (sys.modules["acme"].mount, "hook")
    assert loaded.path == site / "acme"


async def test_the_callback_is_looked_up_where_mount_is_defined(site):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    package(
        site,
        "acme",
        "from ._impl import mount\n",
        _impl=MOUNT + "async def on_session_ready(coordinator): pass\n",
    )
    loaded = await ModuleLoader().load("tool-acme")
    assert loaded.on_session_ready is sys.modules["acme._impl"].on_session_ready


async def test_a_package_that_hosts_modules_declares_nothing_about_them(site):
    distribution(site, "acme", {"acme-thing": "acme.sub:mount"})
    package(
        site,
        "acme",
        "__amplifier_module_type__ = 'hook'\nasync def on_session_ready(c): pass\n",
        sub=MOUNT,
    )
    loaded = await ModuleLoader().load("acme-thing")
    assert (loaded.module_type, loaded.on_session_ready) == (None, None)


async def test_a_synchronous_callback_is_skipped_with_a_warning_at_every_load(site, caplog):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    package(site, "acme", MOUNT + "def on_session_ready(coordinator): pass\n")
    for expected in (1, 2):
        assert (await ModuleLoader().load("tool-acme")).on_session_ready is None
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == expected
    assert "'tool-acme' (entry point tool-acme of acme 1.0): on_session_ready is" in caplog.text


async def test_a_mount_that_was_replaced_and_a_python_module_that_was_imported_anew_are_noticed(
    site, monkeypatch
):
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


async def test_one_loader_notices_an_installed_and_an_uninstalled_distribution(site):
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
async def test_a_broken_entry_point_is_never_reported_as_not_found(site, value, words, reason):
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


async def test_a_module_on_a_search_path_is_loaded(tmp_path, make_loader):
    checkout = root(tmp_path, "hooks-tool-x", NEVER_MOUNTED)
    loaded = await make_loader(search_paths=[str(tmp_path)]).load("hooks-tool-x")
    assert loaded.module_type == "hook"
    assert loaded.path == checkout / "amplifier_module_hooks_tool_x"
    assert loaded.origin == f"path {checkout}"


async def test_a_search_path_that_is_named_twice_lists_its_modules_once(
    tmp_path, make_loader, monkeypatch
):
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


async def test_a_resolver_without_a_readable_signature_gets_its_hint_by_position(tmp_path):
    resolver = Builtin(str(tmp_path))
    assert await _resolve_with(resolver, "tool-x", None, str(tmp_path)) == tmp_path


async def test_the_conventional_package_is_the_last_resort(site):
    package(site, "amplifier_module_tool_x")
    loaded = await ModuleLoader().load("tool-x")
    assert loaded.origin == "package amplifier_module_tool_x"
    assert loaded.path == site / "amplifier_module_tool_x"


async def test_a_package_that_a_stale_directory_listing_hides_is_found(site):
    with pytest.raises(ModuleNotFoundError):
        await ModuleLoader().load("tool-x")
    status = site.stat()
    package(site, "amplifier_module_tool_x")
    os.utime(
        site, ns=(status.st_atime_ns, status.st_mtime_ns)
    )  # as a file system with a coarse clock would show it
    assert (await ModuleLoader().load("tool-x")).path == site / "amplifier_module_tool_x"


async def test_a_python_module_that_an_embedder_made_counts_as_the_conventional_package(
    monkeypatch,
):
    module = types.ModuleType("amplifier_module_tool_x")
    vars(module)["mount"] = mount_example
    monkeypatch.setitem(sys.modules, "amplifier_module_tool_x", module)
    assert (await ModuleLoader().load("tool-x")).mount is mount_example


async def test_a_source_named_to_one_loader_does_not_leak_into_another(tmp_path, make_loader):
    checkout = root(tmp_path, "tool-x")
    await make_loader().load("tool-x", source_hint=checkout)
    assert str(checkout) in sys.path
    with pytest.raises(
        ModuleNotFoundError, match="imported from a source that another loader was given"
    ):
        await make_loader().load("tool-x")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keyword", ["source_hint", "profile_source"])
@pytest.mark.parametrize(
    "form", [str, lambda path: path, lambda path: path.as_uri()], ids=["str", "Path", "uri"]
)
async def test_without_a_resolver_a_path_is_loaded_from_directly(
    tmp_path, make_loader, keyword, form
):
    checkout = root(tmp_path, "tool-x")
    loaded = await make_loader(modules={"tool-x": mount_example}).load(
        "tool-x", **{keyword: form(checkout)}
    )
    assert loaded.path == checkout / "amplifier_module_tool_x"


async def test_a_resolver_is_asked_first_and_gets_both_hints(tmp_path, make_loader):
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


async def test_the_coordinator_can_be_set_later_or_given_per_load(tmp_path, make_loader):
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
async def test_what_a_resolver_does_not_know_is_looked_for_directly(error, caplog):
    loader = ModuleLoader(
        Coordinator(Resolver(error("unknown here"))), modules={"tool-x": mount_example}
    )
    assert (await loader.load("tool-x", None, "git+https://example.org/x")).mount is mount_example
    assert "WARNING" not in caplog.text


async def test_a_resolver_that_lacks_a_package_itself_is_warned_about(caplog):
    error = builtins.ModuleNotFoundError("No module named 'git'", name="git")
    loader = ModuleLoader(Coordinator(Resolver(error)), modules={"tool-x": mount_example})
    assert (await loader.load("tool-x")).mount is mount_example
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No module named 'git'" in caplog.text


async def test_an_unknown_module_error_names_the_places_of_resolver_and_loader(tmp_path):
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


async def test_a_resolvers_other_errors_leave_unchanged():
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


async def test_a_sources_not_found_counts_like_the_resolvers():
    class Source:
        async def resolve(self):
            raise ModuleNotFoundError("the clone is gone")

    loader = ModuleLoader(Coordinator(Resolver(Source())), modules={"tool-x": mount_example})
    assert (await loader.load("tool-x")).mount is mount_example


# ── sys.path ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_root_is_importable_while_its_loaders_live(tmp_path, make_loader):
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


async def test_a_root_that_is_a_package_needs_no_entry(tmp_path, make_loader):
    directory = package(tmp_path, "amplifier_module_tool_x")
    before = list(sys.path)
    loaded = await make_loader().load("tool-x", source_hint=directory)
    assert (sys.path, loaded.path) == (before, directory)


@pytest.mark.parametrize(
    "body", ["raise RuntimeError\n", "number = 7\n", "mount = 7\n", "import sys\nsys.exit()\n"]
)
async def test_a_failed_load_leaves_neither_an_entry_nor_a_module(tmp_path, body):
    checkout = root(tmp_path, "tool-x", "import beside_x\n" + body, beside_x="")
    before = list(sys.path), set(sys.modules)
    loader = ModuleLoader()
    with pytest.raises(ModuleLoadError):
        await loader.load("tool-x", source_hint=checkout)
    assert (list(sys.path), set(sys.modules)) == before
    assert repr(loader) == "<ModuleLoader 0 registered, 0 loaded, 0 sys.path entries held>"


async def test_a_failed_load_keeps_an_entry_that_another_module_needs(tmp_path, make_loader):
    package(tmp_path, "amplifier_module_tool_a")
    package(tmp_path, "amplifier_module_tool_b", "raise RuntimeError\n")
    loader = make_loader()
    await loader.load("tool-a", source_hint=tmp_path)
    with pytest.raises(ModuleLoadError):
        await loader.load("tool-b", source_hint=tmp_path)
    assert str(tmp_path) in sys.path


# ── nothing found ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known_by", ["registration", "entry point", "search path"])
async def test_not_found_names_the_id_the_searched_places_and_the_nearest_id(
    site, tmp_path, known_by
):
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


async def test_removed_provider_is_not_found_and_what_replaces_it_is_named():
    with pytest.raises(
        ModuleNotFoundError,
        match=r"no module 'provider-local' was found; provider-local was removed: .*base_url",
    ):
        await ModuleLoader().load("provider-local")


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_import_hook_is_called_before_the_first_import_of_a_package(
    site, tmp_path, make_loader
):
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
def test_only_our_own_errors_carry_a_reason(error, reason):
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
async def test_a_module_in_another_language_is_refused_with_a_sentence(
    tmp_path, make_loader, file, text, kind
):
    (tmp_path / file).write_text(text)
    with pytest.raises(
        ModuleLoadError, match=f"holds {kind}, and only Python modules are loaded here"
    ):
        await make_loader().load("tool-other", source_hint=str(tmp_path))


async def test_the_manifest_of_a_python_module_is_no_obstacle(tmp_path, make_loader):
    package = tmp_path / "amplifier_module_tool_with_manifest"
    package.mkdir()
    (package / "__init__.py").write_text("async def mount(coordinator, config=None): ...\n")
    (tmp_path / "amplifier.toml").write_text('[module]\ntransport = "python"\n')
    assert (
        await make_loader().load("tool-with-manifest", source_hint=str(tmp_path))
    ).module_id == "tool-with-manifest"
