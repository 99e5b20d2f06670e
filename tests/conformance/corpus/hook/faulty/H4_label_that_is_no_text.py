"""A hook that trusts that a key that it looks up holds a text."""

__amplifier_module_type__ = "hook"
from amplifier.models import HookResult


async def mount(coordinator, config):
    async def on_pre(event, data):
        label = data.get("customer_label", "")
        if label.strip() == "blocked":
            return HookResult(action="deny", reason="blocked")
        return HookResult(action="continue")

    coordinator.hooks.register("tool:pre", on_pre, name="strip")
