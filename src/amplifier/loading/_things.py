"""From an entry of a plan that is no id but the module itself to what a session mounts."""

from __future__ import annotations

import inspect
from typing import Any, Final, cast

from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleLoadError
from amplifier.models import ModuleType
from amplifier.plan import ModuleSpec

from ._found import FoundModule
from ._loaded import LoadedModule, examine_registered, usable_here

_EXPECTED: Final = {
    "tool": "a function, an object with name, description and execute(input)",
    "hook": "a function marked with @on('tool:pre', …)",
    "provider": "an object with name and complete(request)",
    "context": "an object with add_message, get_messages_for_request, get_messages, set_messages and clear",
    "orchestrator": "an object with execute(prompt, context, providers, tools, hooks)",
}


def load_thing(kind: str, spec: ModuleSpec) -> LoadedModule:
    """What the session mounts for a function, an instance or a mount function in a plan.

    Raises:
        ModuleLoadError: It is none that this section of a plan takes; the message says what it takes.
    """
    mount = _mount_of(kind, spec)
    found = FoundModule(module_id=spec.module, registered=mount, registered_type=kind)
    return usable_here(examine_registered(found))


def _mount_of(kind: str, spec: ModuleSpec) -> Any:
    thing = spec.thing
    if isinstance(thing, type):
        raise _error(kind, spec, f"the class {thing.__name__}; write {thing.__name__}(…) for an instance of it")
    if callable(getattr(thing, "mount", None)):
        return thing
    if _is_mount(thing):
        return thing
    if kind != "hook" and isinstance(thing, CONTRACTS[cast("ModuleType", kind)].protocol):

        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            return thing

        return mount
    if callable(thing) and kind in ("tool", "hook"):
        from amplifier.functions import mount_hook, mount_tool  # noqa: PLC0415 — for plans with functions

        try:
            return mount_tool(thing) if kind == "tool" else mount_hook(thing)
        except TypeError as error:
            raise _error(kind, spec, str(error)) from error
    hint = "; an agent is a tool in agent(…, tools=[…])" if hasattr(thing, "agent_name") else ""
    raise _error(kind, spec, f"{type(thing).__name__} {thing!r:.80}{hint}")


def _is_mount(thing: Any) -> bool:
    """Whether it is a mount function: it is called so, or its first parameter is the coordinator; the second is the configuration."""
    if not inspect.isroutine(thing):
        return False
    try:
        names = list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) == 2 and (thing.__name__ == "mount" or names[0].strip("_") in ("coordinator", "coord"))


def _error(kind: str, spec: ModuleSpec, found: str) -> ModuleLoadError:
    expected = f"expected the id of a module, {_EXPECTED[kind]}, or a function mount(coordinator, config)"
    return ModuleLoadError(
        f"{spec.path} is no {kind}: {expected}, got {found}", module_id=spec.module, reason_code="invalid_entry_point"
    )
