"""Modules that are not written in Python: what a directory holds, and a mount function that refuses it.

Their transports need the published kernel's engine. They are recognized, so that the error names the transport and not a
missing Python package.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from amplifier.errors import ModuleLoadError

__all__ = ["grpc_mount", "resolve_module", "sidecar_mount", "wasm_mount"]

Mount = Callable[[Any], Awaitable[Any]]


def resolve_module(path: str) -> dict[str, Any]:
    """What a module's directory holds.

    Returns:
        At least ``transport``, ``module_type`` and ``artifact_type``.

    Raises:
        RuntimeError: Nothing, or nothing that can be read.
    """
    root = Path(path)
    if not root.exists():
        raise RuntimeError(f"module path does not exist: {path}")
    manifest = root / "amplifier.toml"
    if manifest.is_file():
        try:
            return _declared(tomllib.loads(manifest.read_text(encoding="utf-8")), root)
        except (ValueError, OSError) as exc:
            raise RuntimeError(f"failed to parse amplifier.toml at {path}: {exc}") from exc
    components = [root] if root.suffix == ".wasm" else sorted(root.glob("*.wasm"))
    if components:
        artifact = str(components[0])
        return {"transport": "wasm", "module_type": "tool", "artifact_type": "wasm", "artifact_path": artifact}
    packages = [root, *sorted(root.iterdir())] if root.is_dir() else []
    package = next((place for place in packages if (place / "__init__.py").is_file()), None)
    if package is None:
        raise RuntimeError(
            f"could not detect module transport at {path}. Expected: .wasm file, amplifier.toml, or Python package "
            "(__init__.py)."
        )
    return {"transport": "python", "module_type": "tool", "artifact_type": "python", "package_name": package.name}


def _declared(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    module = manifest.get("module")
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise ValueError("missing 'type' field in [module] section")
    transport = module.get("transport", "python")
    found = {"transport": transport, "module_type": module["type"], "artifact_type": transport}
    if transport == "grpc":
        endpoint = manifest.get("grpc", {}).get("endpoint")
        if not endpoint:
            raise ValueError("gRPC transport requires [grpc] section with 'endpoint' field")
        return {**found, "endpoint": endpoint}
    if transport == "rust":
        if not module.get("crate"):
            raise ValueError("Rust transport requires 'crate' field in [module] section")
        return {**found, "crate_name": module["crate"]}
    if transport == "wasm":
        return {**found, "artifact_path": str(next(iter(sorted(path.glob("*.wasm"))), path))}
    return {**found, "transport": "python", "artifact_type": "python", "package_name": path.name}


def wasm_mount(module_path: Path) -> Mount:
    """Have the engine mount a WebAssembly component; ours raises an error."""
    load = importlib.import_module("amplifier_core._engine").load_and_mount_wasm  # tests put doubles there

    async def mount(coordinator: Any) -> None:
        load(coordinator, str(module_path))

    return mount


def grpc_mount(module_id: str) -> Mount:
    """The mount function of a gRPC service, which fails: this kernel does not connect to one."""
    return _refusing(module_id, "a gRPC service, which this kernel does not connect to")


def sidecar_mount(module_path: Path, module_id: str, manifest: dict[str, Any]) -> Mount:
    """Find a sidecar's program; starting it is left to the published kernel.

    Raises:
        FileNotFoundError: There is none.
    """
    crate = manifest.get("crate_name") or ""
    places = [module_path / crate, module_path / f"{crate}.exe", module_path / "target" / "release" / crate]
    if not crate or not any(place.is_file() for place in places):
        looked = ", ".join(map(str, places))
        raise FileNotFoundError(f"no sidecar binary of crate {crate!r} for module {module_id!r}; looked for {looked}")

    return _refusing(module_id, "a sidecar program, which this kernel does not start")


def _refusing(module_id: str, what: str) -> Mount:
    async def mount(coordinator: Any) -> None:
        raise ModuleLoadError(
            f"module {module_id!r} is {what}; use the published kernel for it, or a module in Python",
            module_id=module_id,
            reason_code="mount_failed",
        )

    return mount
