"""Sound: a journal of JSON lines in a file of the session's own, written in worker threads under a lock."""

import json
import os
from pathlib import Path

import anyio
import anyio.to_thread

__amplifier_module_type__ = "context"


class JournalContext:
    def __init__(self, path, hooks, max_tokens):
        self._path = path
        self._hooks = hooks
        self._max_tokens = max_tokens
        self._lines = []
        self._lock = anyio.Lock()

    def load(self):
        if self._path.exists():
            text = self._path.read_text(encoding="utf-8")
            self._lines = [line for line in text.split("\n") if line]

    async def add_message(self, message):
        if "role" not in message:
            raise ValueError("no role")
        line = json.dumps(message)
        async with self._lock:
            await self._write([*self._lines, line])

    async def set_messages(self, messages):
        lines = [json.dumps(message) for message in messages]
        async with self._lock:
            await self._write(lines)

    async def clear(self):
        async with self._lock:
            await self._write([])

    async def get_messages(self):
        return [json.loads(line) for line in self._lines]

    async def get_messages_for_request(self, token_budget=None, provider=None):
        messages = await self.get_messages()
        budget = token_budget
        if budget is None and provider is not None:
            said = provider.get_info().defaults or {}
            if said.get("context_window"):
                budget = said["context_window"] - said.get("max_output_tokens", 4096) - 500
        if budget is None:
            budget = self._max_tokens
        total = sum(len(line) for line in self._lines) // 4
        if total <= budget:
            return messages
        await self._hooks.emit("context:pre_compact", {"message_count": len(messages), "token_count": total})
        view = self._view(messages, budget)
        spent = sum(len(json.dumps(message)) for message in view) // 4
        await self._hooks.emit("context:post_compact", {"message_count": len(view), "token_count": spent})
        return view

    @staticmethod
    def _view(messages, budget):
        left = budget * 4 - sum(len(json.dumps(m)) for m in messages if m["role"] == "system")
        shown = [m["role"] == "system" for m in messages]
        index = len(messages) - 1
        is_first = True
        while index >= 0:
            first = JournalContext._begin(messages, index)
            part = [at for at in range(first, index + 1) if messages[at]["role"] != "system"]
            left -= sum(len(json.dumps(messages[at])) for at in part)
            if left < 0 and not is_first:
                break
            for at in part:
                shown[at] = True
            is_first = is_first and not part
            index = first - 1
        return [message for message, is_shown in zip(messages, shown, strict=True) if is_shown]

    @staticmethod
    def _begin(messages, index):
        """Where the stretch begins that cannot be cut before this message."""
        owed = set()
        for at in range(index, -1, -1):
            if messages[at]["role"] == "tool":
                owed.add(messages[at]["tool_call_id"])
            owed -= {call["id"] for call in calls_in(messages[at])}
            if not owed:
                return at
        return index

    async def _write(self, lines):
        def replace():
            beside = self._path.with_suffix(".new")
            beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            os.replace(beside, self._path)

        # The file is replaced in one go, and memory follows before anything else can happen.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(replace)
            self._lines = lines


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


async def mount(coordinator, config):
    folder = Path(config.get("directory") or Path.home() / ".journal")
    folder.mkdir(parents=True, exist_ok=True)
    context = JournalContext(
        folder / f"{coordinator.session_id}.jsonl", coordinator.hooks, config.get("max_tokens", 60_000)
    )
    await anyio.to_thread.run_sync(context.load)
    await coordinator.mount("context", context)
