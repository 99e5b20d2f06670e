"""Shows the newest messages that fit; calls and their results stay together."""

import copy

__amplifier_module_type__ = "context"


def count(message):
    return 4 + (len(str(message.get("content") or "")) + len(str(message.get("tool_calls") or ""))) // 4


class Memory:
    def __init__(self, hooks, max_tokens):
        self.hooks = hooks
        self.max_tokens = max_tokens
        self.messages = []

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("a message needs a role")
        self.messages.append(copy.deepcopy(message))

    async def get_messages(self):
        return copy.deepcopy(self.messages)

    async def set_messages(self, messages):
        self.messages = copy.deepcopy(list(messages))

    async def clear(self):
        self.messages = []

    async def get_messages_for_request(self, token_budget=None, provider=None):
        budget = self.budget(token_budget, provider)
        total = sum(count(message) for message in self.messages)
        if total <= budget:
            return copy.deepcopy(self.messages)
        await self.hooks.emit("context:pre_compact", {"message_count": len(self.messages), "token_count": total})
        view = self.compacted(copy.deepcopy(self.messages), budget)
        spent = sum(count(message) for message in view)
        await self.hooks.emit("context:post_compact", {"message_count": len(view), "token_count": spent})
        return view

    def budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        defaults = provider.get_info().defaults if provider is not None else {}
        window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        return window - output - 1000 if window and output else self.max_tokens

    def compacted(self, messages, budget):
        keep = {at for at, message in enumerate(messages) if message["role"] == "system"}
        left = budget - sum(count(messages[at]) for at in keep)
        for at in range(len(messages) - 1, -1, -1):
            if at in keep:
                continue
            part = self.together(messages, at) - keep
            cost = sum(count(messages[each]) for each in part)
            if cost > left and at < len(messages) - 1:
                break
            left -= cost
            keep |= part
        return [message for at, message in enumerate(messages) if at in keep]

    @staticmethod
    def together(messages, at):
        """A message with the call it answers and all results of that call's message."""
        mine = {messages[at].get("tool_call_id")}
        mine |= {call["id"] for call in calls_in(messages[at])}
        mine.discard(None)
        callers = [
            other for other, message in enumerate(messages) if any(call["id"] in mine for call in calls_in(message))
        ]
        for other in callers:
            mine |= {call["id"] for call in calls_in(messages[other])}
        results = [other for other, message in enumerate(messages) if message.get("tool_call_id") in mine]
        return {at, *callers, *results}


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


async def mount(coordinator, config):
    context = Memory(coordinator.hooks, config.get("max_tokens", 100_000))
    await coordinator.mount("context", context)
