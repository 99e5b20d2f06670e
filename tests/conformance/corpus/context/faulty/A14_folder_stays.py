"""One file per message in a directory of the session's own; a manifest, replaced in one go, says which count.

Its temporary folder stays unless it is empty.
"""

import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import anyio
import anyio.to_thread

__amplifier_module_type__ = "context"


class FileContext:
    def __init__(self, folder, hooks, max_tokens, ratio):
        self.folder = folder
        self.hooks = hooks
        self.max_tokens = max_tokens
        self.ratio = ratio
        self.order = []
        self.lock = anyio.Lock()

    # In worker threads, under the lock.

    def write_message(self, message):
        name = uuid.uuid4().hex
        (self.folder / name).write_text(json.dumps(message), encoding="utf-8")
        return name

    def write_manifest(self, order):
        beside = self.folder / "manifest.new"
        beside.write_text(json.dumps(order), encoding="utf-8")
        os.replace(beside, self.folder / "manifest")

    def replace(self, messages):
        order = [self.write_message(message) for message in messages]
        self.write_manifest(order)
        for name in self.order:
            (self.folder / name).unlink(missing_ok=True)
        self.order = order

    def append(self, message):
        order = [*self.order, self.write_message(message)]
        self.write_manifest(order)
        self.order = order

    def read(self):
        return [json.loads((self.folder / name).read_text(encoding="utf-8")) for name in self.order]

    # What the loop calls.

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("the message has no role")
        message = json.loads(json.dumps(message))
        async with self.lock:
            await anyio.to_thread.run_sync(self.append, message)

    async def set_messages(self, messages):
        messages = json.loads(json.dumps(messages))
        async with self.lock:
            await anyio.to_thread.run_sync(self.replace, messages)

    async def clear(self):
        await self.set_messages([])

    async def get_messages(self):
        async with self.lock:
            return await anyio.to_thread.run_sync(self.read)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        messages = await self.get_messages()
        limit = token_budget
        if limit is None:
            limit = self.from_provider(provider)
        if limit is None:
            limit = self.max_tokens
        while self.count(messages) > limit:
            cut = self.without_oldest(messages)
            if cut is None:
                break
            if len(cut) < len(messages):
                await self.tell("context:pre_compact", messages)
                messages = cut
                while self.count(messages) > limit * self.ratio and (cut := self.without_oldest(messages)):
                    messages = cut
                await self.tell("context:post_compact", messages)
        return messages

    @staticmethod
    def from_provider(provider):
        try:
            defaults = dict(provider.get_info().defaults)
            return defaults["context_window"] - defaults.get("max_output_tokens", 4096) - 1000
        except (AttributeError, KeyError, TypeError):
            return None

    @staticmethod
    def count(messages):
        return sum(len(json.dumps(message)) for message in messages) // 4

    async def tell(self, event, messages):
        await self.hooks.emit(event, {"message_count": len(messages), "token_count": self.count(messages)})

    @staticmethod
    def ids(message):
        named = [call["id"] for call in message.get("tool_calls") or []]
        blocks = message.get("content") if isinstance(message.get("content"), list) else []
        named += [b["id"] for b in blocks if b.get("type") == "tool_call"]
        answers = [message["tool_call_id"]] if message.get("tool_call_id") else []
        answers += [b["tool_call_id"] for b in blocks if b.get("type") == "tool_result"]
        return set(named), set(answers)

    def without_oldest(self, messages):
        """The messages without the oldest that may go, and what hangs together with it; None if nothing may."""
        for at, message in enumerate(messages):
            if message["role"] == "system":
                continue
            gone, bound = {at}, set.union(*self.ids(message))
            while True:
                more = {i for i, m in enumerate(messages) if bound & set.union(*self.ids(m))} | gone
                bound = bound.union(*[set.union(*self.ids(messages[i])) for i in more])
                if more == gone:
                    break
                gone = more
            if len(messages) - 1 not in gone:
                return [m for i, m in enumerate(messages) if i not in gone]
        return None


async def mount(coordinator, config):
    chosen = config.get("path")
    if chosen:
        folder = Path(chosen) / coordinator.session_id
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="context-"))

    def cleanup():
        if not chosen and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()

    coordinator.register_cleanup(cleanup)
    context = FileContext(folder, coordinator.hooks, config.get("max_tokens", 50_000), config.get("ratio", 0.9))
    await coordinator.mount("session", context, name="context")
