"""Keeps messages in a list and shows whole pieces from the newest backwards.

Planted: there is no mount point "contexts".
"""

import copy
import json

__amplifier_module_type__ = "context"


def tokens(message):
    return len(json.dumps(message, ensure_ascii=False, default=str)) // 4 + 4


def call_ids(message):
    """The ids of the calls that a message makes."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    found = [block.get("id") for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return {*found, *(call.get("id") for call in message.get("tool_calls") or [])}


def result_ids(message):
    """The ids of the calls that a message answers."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    found = [b.get("tool_call_id") for b in blocks if isinstance(b, dict) and b.get("type") == "tool_result"]
    return {*found, message.get("tool_call_id")} - {None}


def pieces(messages):
    """Indexes that are shown or left out together."""
    labels, owner = [], {}
    for at, message in enumerate(messages):
        homes = {labels[owner[each]] for each in result_ids(message) if each in owner}
        home = min(homes, default=at)
        labels = [home if label in homes else label for label in labels] if len(homes) > 1 else labels
        labels.append(home)
        owner.update(dict.fromkeys(call_ids(message), at))
    groups = {}
    for at, label in enumerate(labels):
        groups.setdefault(label, []).append(at)
    return sorted(groups.values(), key=max)


class Memory:
    def __init__(self, coordinator, config):
        self.hooks = coordinator.hooks
        self.limit = config.get("max_tokens", 100_000)
        self.threshold = config.get("compact_threshold", 1.0)
        self.messages = []

    async def add_message(self, message):
        if not isinstance(message, dict) or not message.get("role"):
            raise ValueError("a message needs a role")
        self.messages.append(copy.deepcopy(message))

    async def get_messages(self):
        return copy.deepcopy(self.messages)

    async def set_messages(self, messages):
        self.messages = copy.deepcopy(list(messages))

    async def clear(self):
        self.messages = []

    def budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        defaults = (provider.get_info().defaults or {}) if provider is not None else {}
        if not defaults.get("context_window"):
            return int(self.limit * self.threshold)
        window = defaults["context_window"]
        return max(0, window - (defaults.get("max_output_tokens") or 0) - window // 20)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        budget = self.budget(token_budget, provider)
        messages = copy.deepcopy(self.messages)
        before = sum(map(tokens, messages))
        if before <= budget:
            return messages
        view = self.compacted(messages, budget)
        await self.hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": before})
        after = {"message_count": len(view), "token_count": sum(map(tokens, view))}
        await self.hooks.emit("context:post_compact", after)
        return view

    def compacted(self, messages, budget):
        keep = {at for at, message in enumerate(messages) if message["role"] == "system"}
        left = budget - sum(tokens(messages[at]) for at in keep)
        newest = len(messages) - 1
        for group in reversed(pieces(messages)):
            cost = sum(tokens(messages[at]) for at in group if at not in keep)
            if cost > left and newest not in group:
                break
            keep.update(group)
            left -= cost
        return [messages[at] for at in sorted(keep)]


async def mount(coordinator, config):
    await coordinator.mount("contexts", Memory(coordinator, config))
