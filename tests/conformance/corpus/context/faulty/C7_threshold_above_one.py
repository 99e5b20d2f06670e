"""A tuple that is replaced, never changed; results that are long are shown shortened before anything is left out.

Compacts only when the budget is exceeded by more than half.
"""

import copy
import threading

__amplifier_module_type__ = "context"
SHORT = 200


class ElidingContext:
    def __init__(self, coordinator, config):
        self._emit = coordinator.hooks.emit
        self._limit = config.get("max_tokens", 100_000)
        self._from = config.get("threshold", 1.6)
        self._guard = threading.Lock()
        self._messages = ()

    async def add_message(self, message):
        if "role" not in message or not message["role"]:
            raise ValueError("message.role is missing")
        mine = copy.deepcopy(message)
        with self._guard:
            self._messages = (*self._messages, mine)

    async def set_messages(self, messages):
        mine = tuple(copy.deepcopy(list(messages)))
        with self._guard:
            self._messages = mine

    async def clear(self):
        with self._guard:
            self._messages = ()

    async def get_messages(self):
        return copy.deepcopy(list(self._messages))

    async def get_messages_for_request(self, token_budget=None, provider=None):
        view = await self.get_messages()
        limit = self._budget(token_budget, provider)
        if tokens(view) <= limit * self._from:
            return view
        await self._emit("context:pre_compact", {"message_count": len(view), "token_count": tokens(view)})
        for message in view[:-1]:
            if tokens(view) <= limit:
                break
            content = message.get("content")
            if message["role"] == "tool" and isinstance(content, str) and len(content) > SHORT:
                message["content"] = content[:SHORT] + " [shortened]"
        start = 0
        while tokens(shown(view, start)) > limit:
            following = next_start(view, start)
            if following is None:
                break
            start = following
        view = shown(view, start)
        await self._emit("context:post_compact", {"message_count": len(view), "token_count": tokens(view)})
        return view

    def _budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        get_info = getattr(provider, "get_info", None)
        defaults = getattr(get_info(), "defaults", None) if get_info else None
        if defaults and defaults.get("context_window"):
            return int((defaults["context_window"] - (defaults.get("max_output_tokens") or 1000)) * 0.95)
        return self._limit


def tokens(messages):
    return sum(len(repr(message)) for message in messages) // 4


def shown(messages, start):
    return [m for at, m in enumerate(messages) if at >= start or m["role"] == "system"]


def calls(message):
    found = {call["id"] for call in message.get("tool_calls") or ()}
    if isinstance(message.get("content"), list):
        found |= {b["id"] for b in message["content"] if isinstance(b, dict) and b.get("type") == "tool_call"}
    return found


def next_start(messages, start):
    """The next place where the view may begin: not between a call and its results."""
    for at in range(start + 1, len(messages)):
        before = set().union(*(calls(m) for m in messages[:at]))
        after = {m.get("tool_call_id") for m in messages[at:] if m["role"] == "tool"}
        if not before & after and messages[at]["role"] != "system":
            return at
    return None


async def mount(coordinator, config):
    await coordinator.mount("context", ElidingContext(coordinator, config or {}))
