"""Keeps JSON texts, and shows as many whole turns as fit, newest first chosen."""

import json

__amplifier_module_type__ = "context"


def size(text):
    return len(text) // 4 + 4


class TurnContext:
    def __init__(self, hooks, limit):
        self.hooks = hooks
        self.limit = limit
        self.texts = []
        self.total = 0

    async def add_message(self, message):
        if not isinstance(message, dict) or not message.get("role"):
            raise ValueError(f"a message needs a role: {message!r}")
        text = json.dumps(message)
        self.texts.append(text)
        self.total += size(text)

    async def get_messages(self):
        return [json.loads(text) for text in self.texts]

    async def set_messages(self, messages):
        texts = [json.dumps(message) for message in messages]
        self.texts, self.total = texts, sum(map(size, texts))

    async def clear(self):
        self.texts, self.total = [], 0

    def budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        if provider is not None:
            info = provider.get_info()
            defaults = info.defaults or {}
            window = defaults.get("context_window")
            if window:
                return max(window - (defaults.get("max_output_tokens") or 0) - window // 50, 0)
        return self.limit

    async def get_messages_for_request(self, token_budget=None, provider=None):
        budget = self.budget(token_budget, provider)
        if self.total <= budget:
            return await self.get_messages()
        messages, sizes = await self.get_messages(), [size(text) for text in self.texts]
        count = {"message_count": len(messages), "token_count": self.total}
        await self.hooks.emit("context:pre_compact", count)
        keep = self.choose(messages, sizes, budget)
        view = [message for at, message in enumerate(messages) if at in keep]
        count = {"message_count": len(view), "token_count": sum(sizes[at] for at in keep)}
        await self.hooks.emit("context:post_compact", count)
        return view

    def choose(self, messages, sizes, budget):
        keep = {at for at, message in enumerate(messages) if message["role"] == "system"}
        left = budget - sum(sizes[at] for at in keep)
        groups = self.groups(messages)
        for number, group in enumerate(reversed(groups)):
            cost = sum(sizes[at] for at in group)
            if cost > left and number:
                break
            keep.update(group)
            left -= cost
        return keep

    @staticmethod
    def groups(messages):
        """Stretches that are shown or left out as one: a message with calls and every result of them."""
        groups, owner = [], {}
        for at, message in enumerate(messages):
            if message["role"] == "system":
                continue
            home = owner.get(message.get("tool_call_id")) if message["role"] == "tool" else None
            if home is None:
                home = []
                groups.append(home)
            home.append(at)
            for call in message.get("tool_calls") or []:
                owner[call.get("id")] = home
            content = message.get("content")
            for block in content if isinstance(content, list) else []:
                if isinstance(block, dict) and block.get("type") == "tool_call":
                    owner[block.get("id")] = home
        return groups


async def mount(coordinator, config):
    context = TurnContext(coordinator.hooks, config.get("max_tokens", 80_000))
    await coordinator.mount("context", context)
    return context
