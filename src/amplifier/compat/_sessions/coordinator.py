"""The coordinator in its published form: a façade over a native coordinator, or over a module's view of one.

What is not named here, free attributes included, is the native coordinator's. The constructor's arguments are consumed in
``__new__``, because published subclasses override that and define any ``__init__`` they like.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import Any, Self

from amplifier.kernel import ModuleCoordinator as KernelCoordinator
from amplifier.loading import LoadedModule
from amplifier.loading import ModuleLoader as NativeLoader
from amplifier.models import HookResult

from .._modules.adapting import adapt_mounted, published_view
from .hooks import HookRegistry, method_of_native, of_native, published_result

_OWN = frozenset({"_hooks", "_native"})


class ModuleCoordinator:
    """The modules of one session, as ``amplifier_core.ModuleCoordinator``."""

    _native: Any
    _hooks: HookRegistry

    def __new__(cls, session: Any = None, approval_system: Any = None, display_system: Any = None, **_: Any) -> Self:
        """Build the whole object; a subclass hands its arguments on to here."""
        self = cls.over(KernelCoordinator(session, approval_system, display_system))
        self.mount_points["hooks"] = self._hooks
        return self

    @classmethod
    def over(cls, native: Any) -> Self:
        """The published form of a native coordinator."""
        self = object.__new__(cls)
        self._native = native
        self._hooks = HookRegistry.over(native.hooks)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: ``__new__`` builds the object."""

    def __repr__(self) -> str:
        return repr(self._native)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # an instance that is being copied
            raise AttributeError(name)
        return getattr(self._native, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
            return
        if name == "loader" and value is not None and not isinstance(value, NativeLoader):
            value = _ProgramsLoader(value)
        setattr(self._native, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._native, name)

    # ── what a module may read ──

    session_id: Any = of_native("session_id", "The session's id.")
    parent_id: Any = of_native("parent_id", "The parent session's id, in a child.")
    config: Any = of_native("config", "The mount plan, the same object that was given.")
    cancellation: Any = of_native("cancellation", "The session's cancellation token.")
    mount_points: Any = of_native("mount_points", "What is mounted where, live.")
    channels: Any = of_native("channels", "Contributors by channel.")
    approval_system: Any = of_native("approval_system", "Answers approval requests of hooks.")
    display_system: Any = of_native("display_system", "Shows messages of hooks.")
    session_state: Any = of_native("session_state", "A dict for modules to share values.")
    injection_budget_per_turn: Any = of_native(
        "injection_budget_per_turn", "Tokens per turn before a warning, or None."
    )
    injection_size_limit: Any = of_native("injection_size_limit", "Characters one injection may have, or None.")

    @property
    def session(self) -> Any:
        """The session; None for a coordinator of its own."""
        published = getattr(self._native, "published_session", None)
        session = None if published is None else published()
        if session is None:
            return self._native.session
        border = getattr(
            self._native, "_island_border", None
        )  # the session is on trio, and this code on an asyncio island
        return session if border is None else border.for_island(session)

    @property
    def loader(self) -> Any:
        """What finds the modules of the session."""
        loader = self._native.loader
        return loader.loader if isinstance(loader, _ProgramsLoader) else loader

    @property
    def hooks(self) -> HookRegistry:
        """The hook registry."""
        return self._hooks

    to_dict: Any = method_of_native(KernelCoordinator, "to_dict", "What is mounted, by name.")

    # ── mounting and registering ──

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Put a module at a mount point. It is there when the call returns; awaiting the result is optional."""
        adapt_mounted(name if mount_point == "session" else mount_point, module, name)
        return self._native.mount(mount_point, module, name)

    unmount: Any = method_of_native(
        KernelCoordinator, "unmount", "Take something away; awaiting the result is optional."
    )

    def get(self, mount_point: str, name: str | None = None) -> Any:
        """The module at a single mount point, the dict or one module of a named one; None if there is none."""
        return self._hooks if mount_point == "hooks" else self._native.get(mount_point, name)

    register_capability: Any = method_of_native(
        KernelCoordinator, "register_capability", "Offer a value to whoever asks for ``name``."
    )
    get_capability: Any = method_of_native(
        KernelCoordinator, "get_capability", "The value registered under ``name``, or None."
    )
    register_contributor: Any = method_of_native(
        KernelCoordinator, "register_contributor", "Have ``callback()`` called on each collection."
    )

    async def collect_contributions(self, channel: str) -> Any:
        """What the contributors of ``channel`` return, in order, without None."""
        return await self._native.collect_contributions(channel)

    def register_cleanup(self, cleanup_fn: Any) -> None:
        """Have ``cleanup_fn()`` called when the session closes; what is not callable is ignored."""
        if callable(cleanup_fn):
            self._native.register_cleanup(cleanup_fn)

    async def cleanup(self) -> None:
        """Run all registered cleanups, the last one first; each runs once."""
        await self._native.cleanup()

    # ── turns ──

    async def process_hook_result(self, result: Any, event: str, hook_name: str = "unknown") -> HookResult:
        """Carry out the result of hooks: approvals, injections, messages.

        Raises:
            ValueError: An injection is longer than ``session.injection_size_limit``; nothing was stored.
        """
        processed = await self._native.process_hook_result(result, event, hook_name)
        if result.action == "ask_user" and processed.action in ("continue", "deny"):
            # The published kernel's answer to a question carries no payload.
            return HookResult(action=processed.action, reason=processed.reason)
        return processed if result.action == "modify" else published_result(processed)

    reset_turn: Any = method_of_native(KernelCoordinator, "reset_turn", "Start counting injections of a new turn.")

    async def request_cancel(self, immediate: bool = False) -> None:
        """Request that the running turn stops."""
        self._native.request_cancel(immediate)


class _ProgramsLoader:
    """A loader of a program's own: the mount functions that it gives get the published coordinator."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    async def load(self, module_id: str, config: Any = None, source_hint: Any = None) -> Any:
        """Load a module."""
        mount = self.loader.load(module_id, config, source_hint=source_hint)
        if isawaitable(mount):
            mount = await mount
        return mount if isinstance(mount, LoadedModule) else lambda view: mount(published_view(view))
