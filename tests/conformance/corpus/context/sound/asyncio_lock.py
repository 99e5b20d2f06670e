"""Sound: says that it runs on asyncio alone, and uses its lock and threads; stores JSON texts; cuts long texts short."""

import asyncio
import json

__amplifier_module_type__ = "context"
__amplifier_backends__ = ("asyncio",)


class TextContext:
    def __init__(self, hooks, settings):
        self.hooks = hooks
        self.limit = settings.get("limit", 30_000)
        self.longest = settings.get("longest", 20_000)
        self.lock = asyncio.Lock()
        self.texts = ()

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("a message must have a role")
        text = await asyncio.to_thread(json.dumps, message)
        async with self.lock:
            await asyncio.sleep(0)
            self.texts += (text,)

    async def get_messages(self):
        return [json.loads(text) for text in self.texts]

    async def set_messages(self, messages):
        texts = tuple(json.dumps(message) for message in messages)
        async with self.lock:
            self.texts = texts

    async def clear(self):
        async with self.lock:
            self.texts = ()

    async def get_messages_for_request(self, token_budget=None, provider=None):
        budget = token_budget or self._from(provider) or self.limit
        messages = await self.get_messages()
        count = sum(self.count(message) for message in messages)
        if count <= budget:
            return messages
        await self.hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": count})
        longest = min(self.longest, budget)
        short = [self.shorten(message, longest) for message in messages]
        view = self.newest(short, budget)
        count = sum(self.count(message) for message in view)
        await self.hooks.emit("context:post_compact", {"message_count": len(view), "token_count": count})
        return view

    def newest(self, messages, budget):
        left = budget - sum(self.count(m) for m in messages if m["role"] == "system")
        system = [m for m in messages if m["role"] == "system"]
        rest = [m for m in messages if m["role"] != "system"]
        cut = len(rest)
        open_ids, at = set(), len(rest)
        while at > 0:
            at -= 1
            left -= self.count(rest[at])
            if left < 0 and cut < len(rest):
                break
            if rest[at]["role"] == "tool":
                open_ids.add(rest[at]["tool_call_id"])
            for call in rest[at].get("tool_calls") or []:
                open_ids.discard(call["id"])
            if not open_ids:
                cut = at
        return system + rest[cut:]

    @staticmethod
    def shorten(message, longest):
        content = message.get("content")
        if isinstance(content, str) and len(content) > longest:
            return {**message, "content": f"{content[:longest]} [cut]"}
        return message

    @staticmethod
    def count(message):
        return len(json.dumps(message)) // 4

    @staticmethod
    def _from(provider):
        if provider is None:
            return None
        defaults = provider.get_info().defaults
        if not defaults.get("context_window"):
            return None
        return defaults["context_window"] - defaults.get("max_output_tokens", 0) - 1000


async def mount(coordinator, config):
    context = TextContext(coordinator.hooks, config)
    await coordinator.mount("context", context)

    async def cleanup():
        context.texts = ()

    return cleanup
