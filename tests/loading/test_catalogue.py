from __future__ import annotations

import sys

from amplifier.loading import ModuleLoader
from tests.loading._forge import MOUNT, distribution, package, root, write

EXPLODES = "raise SystemExit('discovery ran this')\n"


def of(infos, module_id):
    return [info for info in infos if info.id == module_id]


async def test_modules_are_listed_without_running(site, tmp_path):
    distribution(
        site, "acme", {"acme-thing": "acme.sub:mount", "loop-acme": "acme:mount"}, version="3.2"
    )
    package(site, "acme", EXPLODES, sub=f"__amplifier_module_type__ = 'hook'\n{EXPLODES}")
    checkout = root(
        tmp_path / "search",
        "context-local",
        f"__amplifier_module_type__: str = 'context'\n{EXPLODES}",
    )
    write(
        checkout / "pyproject.toml", "[project]\nversion = '0.7'\ndescription = 'Local context'\n"
    )
    loader = ModuleLoader(
        search_paths=[tmp_path / "search"], modules={"tool-own": lambda coordinator, config: None}
    )

    infos = await loader.discover()

    (thing,) = of(infos, "acme-thing")
    assert (thing.type, thing.mount_point, thing.version) == ("hook", "hooks", "3.2")
    assert (thing.name, thing.description) == ("Acme Thing", "About acme")
    (loop,) = of(infos, "loop-acme")
    assert (loop.type, loop.mount_point) == ("orchestrator", "orchestrator")
    (local,) = of(infos, "context-local")
    assert (local.type, local.version, local.description) == ("context", "0.7", "Local context")
    (own,) = of(infos, "tool-own")
    assert (own.type, own.version, own.description) == ("tool", "1.0.0", "Module: tool-own")
    assert "acme" not in sys.modules
    assert repr(loader) == "<ModuleLoader 1 registered, 0 loaded, 0 sys.path entries held>"


async def test_unreadable_modules_are_logged_and_omitted(site, tmp_path, caplog):
    distribution(
        site,
        "acme",
        {"Not.An.Id": "acme:mount", "tool-odd": "odd:mount", "tool-syntax": "syntax:mount"},
    )
    package(site, "odd", "__amplifier_module_type__ = 'widget'\n")
    package(site, "syntax", "def (:\n")
    (tmp_path / "search" / "amplifier-module-tool-empty").mkdir(parents=True)
    write(tmp_path / "search" / "amplifier-module-tool-toml" / "pyproject.toml", "not toml [")
    package(tmp_path / "search" / "amplifier-module-tool-toml", "amplifier_module_tool_toml", MOUNT)
    infos = await ModuleLoader(search_paths=[tmp_path / "search", tmp_path / "absent"]).discover()
    ids = [info.id for info in infos]
    assert "tool-syntax" in ids
    assert "tool-toml" in ids
    assert not {"Not.An.Id", "tool-odd", "tool-empty"} & set(ids)
    for words in (
        "'Not.An.Id' is not a module id",
        "'widget'",
        "absent cannot be read",
        "has no package",
    ):
        assert words in caplog.text


async def test_registered_module_of_unknown_kind_is_tool():
    """Unless its registration declares another kind."""
    loader = ModuleLoader()
    loader.register("my-thing", lambda coordinator, config: None)
    loader.register("my-hook", lambda coordinator, config: None, module_type="hook")
    loader.register("my-error", lambda coordinator, config: None, module_type="widget")
    infos = await loader.discover()
    assert [(info.id, info.type) for info in infos if info.id.startswith("my-")] == [
        ("my-thing", "tool"),
        ("my-hook", "hook"),
    ]
