"""Sound: a list of deep copies; the view is filled from the end, in groups that belong together."""

import copy
import json

__amplifier_module_type__ = "context"


class ListContext:
    def __init__(self, hooks, max_tokens):
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._messages = []

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("a message needs a role")
        self._messages.append(copy.deepcopy(message))

    async def get_messages(self):
        return copy.deepcopy(self._messages)

    async def set_messages(self, messages):
        self._messages = copy.deepcopy(list(messages))

    async def clear(self):
        self._messages = []

    async def get_messages_for_request(self, token_budget=None, provider=None):
        budget = self._budget(token_budget, provider)
        messages = copy.deepcopy(self._messages)
        total = sum(map(self._count, messages))
        if total <= budget:
            return messages
        await self._hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": total})
        kept = self._fit(messages, budget)
        view = [message for index, message in enumerate(messages) if index in kept]
        counts = {"message_count": len(view), "token_count": sum(map(self._count, view))}
        await self._hooks.emit("context:post_compact", counts)
        return view

    def _fit(self, messages, budget):
        kept = {index for index, message in enumerate(messages) if message["role"] == "system"}
        spent = sum(self._count(messages[index]) for index in kept)
        for number, group in enumerate(reversed(self._groups(messages))):
            cost = sum(self._count(messages[index]) for index in group)
            if number and spent + cost > budget:
                break
            spent += cost
            kept.update(group)
        return kept

    @staticmethod
    def _groups(messages):
        """Indices that stay together; ordered by their last index."""
        groups, owner = [], {}
        for index, message in enumerate(messages):
            if message["role"] == "system":
                continue
            group = owner.get(message.get("tool_call_id"))
            if group is None:
                group = []
                groups.append(group)
            group.append(index)
            for call in calls_in(message):
                owner[call["id"]] = group
        return sorted(groups, key=lambda group: group[-1])

    @staticmethod
    def _count(message):
        return len(json.dumps(message, ensure_ascii=False)) // 4 + 1

    def _budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        if provider is not None:
            defaults = provider.get_info().defaults or {}
            window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
            if window and output:
                return window - output - 1000
        return self._max_tokens


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


async def mount(coordinator, config):
    context = ListContext(coordinator.hooks, config.get("max_tokens", 100_000))
    await coordinator.mount("context", context)
