"""The wire format without protobuf: what is written is read again, and what is no message is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.compat._alias.finder import MIRROR
from amplifier.errors import ModuleLoadError


@pytest.fixture
def wire(alias: None) -> Any:
    """The codec; it is imported under the published name only."""
    from amplifier_core._grpc_gen import _codec  # type: ignore[import-not-found]

    return _codec


SCALARS = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
    "bytes": st.binary(min_size=1, max_size=5),
    "bool": st.just(True),
    "int32": st.integers(-(2**31), 2**31 - 1).filter(bool),
    "double": st.floats(allow_nan=False).filter(bool),
}


def table() -> Any:
    """The table itself, which needs nothing else of the mirror."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("wire_table", MIRROR / "_grpc_gen" / "_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = table()


def messages(name: str, depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Messages of one kind, as deep as ``depth``."""
    parts: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    for field in TABLE.MESSAGES[name]:
        if field.kind == "map":
            continue
        if field.kind in TABLE.ENUMS:
            value: Any = st.integers(1, len(TABLE.ENUMS[field.kind]) - 1)
        elif field.kind in SCALARS:
            value = SCALARS[field.kind]
        else:
            value = messages(field.kind, depth - 1) if depth else st.just(None)
        parts[field.name] = st.lists(value, max_size=2) if field.is_repeated else value
        if field.group is not None:
            groups.setdefault(field.group, []).append(field.name)

    def settled(drawn: dict[str, Any]) -> dict[str, Any]:
        for members in groups.values():
            for extra in [member for member in members if member in drawn][1:]:
                del drawn[extra]
        for field in TABLE.MESSAGES[name]:
            if field.is_repeated:
                drawn[field.name] = [one for one in drawn.get(field.name, []) if one is not None]
        return {name: value for name, value in drawn.items() if value is not None}

    return st.fixed_dictionaries({}, optional=parts).map(settled)


@pytest.mark.parametrize("name", ["ChatRequest", "ChatResponse", "HookResult", "ToolExecuteResponse", "ProviderInfo"])
def test_what_is_written_is_read_again(wire: Any, name: str):
    @given(messages(name))
    def holds(message: dict[str, Any]) -> None:
        assert wire.decode(wire.encode(message, name), name) == message

    holds()


@given(st.binary(max_size=30))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes):
    from amplifier import compat

    compat.install()
    try:
        from amplifier_core._engine import proto_chat_request_to_json  # type: ignore[import-not-found]

        with contextlib.suppress(ValueError):
            assert "messages" in json.loads(proto_chat_request_to_json(data))
    finally:
        compat.uninstall()


def test_unknown_fields_are_passed_over(wire: Any):
    known = wire.encode({"name": "t"}, "ToolSpec")
    unknown = bytes([15 << 3 | 0, 5, 14 << 3 | 2, 1, 65, 13 << 3 | 5, 0, 0, 0, 0])
    assert wire.decode(known + unknown, "ToolSpec") == {"name": "t"}


def test_of_a_group_the_last_one_counts(wire: Any):
    both = wire.encode({"text_content": "a"}, "Message") + wire.encode({"block_content": {"blocks": []}}, "Message")
    assert wire.decode(both, "Message") == {"block_content": {"blocks": []}}


def test_modules_in_other_languages_are_recognized(alias: None, tmp_path: Any):
    from amplifier_core._engine import load_and_mount_wasm, resolve_module

    (tmp_path / "x.wasm").write_bytes(b"")
    assert resolve_module(str(tmp_path))["transport"] == "wasm"
    with pytest.raises(RuntimeError, match="WebAssembly"):
        load_and_mount_wasm(None, str(tmp_path))
    (tmp_path / "amplifier.toml").write_text('[module]\ntype = "tool"\ntransport = "grpc"\n')
    with pytest.raises(RuntimeError, match=r"requires \[grpc\] section"):
        resolve_module(str(tmp_path))
    with pytest.raises(RuntimeError, match="does not exist"):
        resolve_module(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (
            'transport = "grpc"\n[grpc]\nendpoint = "localhost:7"\n',
            "a gRPC service, which this kernel does not connect to",
        ),
        ('transport = "rust"\ncrate = "there"\n', "a sidecar program, which this kernel does not start"),
    ],
)
async def test_a_module_in_another_language_is_refused_when_it_is_mounted(
    alias: None, tmp_path: Path, manifest: str, words: str
):
    from amplifier_core import ModuleCoordinator
    from amplifier_core.loader import ModuleLoader

    (tmp_path / "amplifier.toml").write_text(f'[module]\ntype = "tool"\n{manifest}')
    (tmp_path / "there").touch()
    source = SimpleNamespace(resolve=lambda: tmp_path)
    coordinator = ModuleCoordinator()
    await coordinator.mount("module-source-resolver", SimpleNamespace(resolve=lambda *args, **kwargs: source))
    loader = ModuleLoader(coordinator)
    mount = await loader.load("tool-other", {}, coordinator=coordinator)
    loader.cleanup()
    with pytest.raises(ModuleLoadError, match=words):
        await mount(coordinator)
