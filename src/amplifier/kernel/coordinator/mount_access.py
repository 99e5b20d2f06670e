"""Reading and writing mount points, with one typed signature for each of them."""

from __future__ import annotations

from typing import Any, Literal, overload

from amplifier.contracts import (
    AsyncModuleSourceResolver,
    ContextManager,
    Hooks,
    ModuleSourceResolver,
    Orchestrator,
    Provider,
    Tool,
)

from .mounts import DONE, Done, Mounts


class MountPointAccess:
    """The part of `ModuleCoordinator` that reads and writes mount points."""

    mounts: Mounts

    @overload
    def mount(self, mount_point: Literal["orchestrator"], module: Orchestrator, name: str | None = None) -> Done: ...
    @overload
    def mount(self, mount_point: Literal["context"], module: ContextManager, name: str | None = None) -> Done: ...
    @overload
    def mount(self, mount_point: Literal["providers"], module: Provider, name: str | None = None) -> Done: ...
    @overload
    def mount(self, mount_point: Literal["tools"], module: Tool, name: str | None = None) -> Done: ...
    @overload
    def mount(
        self,
        mount_point: Literal["module-source-resolver"],
        module: ModuleSourceResolver | AsyncModuleSourceResolver,
        name: str | None = None,
    ) -> Done: ...
    @overload
    def mount(self, mount_point: Literal["session"], module: Orchestrator, name: Literal["orchestrator"]) -> Done: ...
    @overload
    def mount(self, mount_point: Literal["session"], module: ContextManager, name: Literal["context"]) -> Done: ...
    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Done:
        """Put a module at a mount point. It is there when the call returns; awaiting the result is optional.

        Raises:
            ValueError: Unknown mount point, ``hooks``, or no name where one is needed.
        """
        self.mounts.mount(mount_point, module, name, None)
        return DONE

    def unmount(self, mount_point: str, name: str | None = None) -> Done:
        """Take a module away; its cleanups do not run before the session closes.

        Raises:
            ValueError: Unknown mount point, or no name where one is needed.
        """
        self.mounts.unmount(mount_point, name)
        return DONE

    @overload
    def get(self, mount_point: Literal["orchestrator"], name: str | None = None) -> Orchestrator | None: ...
    @overload
    def get(self, mount_point: Literal["context"], name: str | None = None) -> ContextManager | None: ...
    @overload
    def get(self, mount_point: Literal["providers"], name: None = None) -> dict[str, Provider]: ...
    @overload
    def get(self, mount_point: Literal["providers"], name: str) -> Provider | None: ...
    @overload
    def get(self, mount_point: Literal["tools"], name: None = None) -> dict[str, Tool]: ...
    @overload
    def get(self, mount_point: Literal["tools"], name: str) -> Tool | None: ...
    @overload
    def get(self, mount_point: Literal["hooks"], name: str | None = None) -> Hooks: ...
    @overload
    def get(
        self, mount_point: Literal["module-source-resolver"], name: str | None = None
    ) -> ModuleSourceResolver | AsyncModuleSourceResolver | None: ...
    def get(self, mount_point: str, name: str | None = None) -> Any:
        """The module at a single mount point, the dict or one module of a named one; None if there is none.

        Raises:
            ValueError: Unknown mount point.
        """
        return self.mounts.get(mount_point, name)

    @overload
    def get_mounted(self, mount_point: Literal["orchestrator"]) -> Orchestrator | None: ...
    @overload
    def get_mounted(self, mount_point: Literal["context"]) -> ContextManager | None: ...
    @overload
    def get_mounted(self, mount_point: Literal["providers"]) -> dict[str, Provider]: ...
    @overload
    def get_mounted(self, mount_point: Literal["tools"]) -> dict[str, Tool]: ...
    @overload
    def get_mounted(self, mount_point: Literal["hooks"]) -> Hooks: ...
    @overload
    def get_mounted(
        self, mount_point: Literal["module-source-resolver"]
    ) -> ModuleSourceResolver | AsyncModuleSourceResolver | None: ...
    def get_mounted(self, mount_point: str) -> Any:
        """The same as ``get(mount_point)``."""
        return self.mounts.get(mount_point)
