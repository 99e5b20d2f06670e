"""Sound: what is left out is replaced by a summary of its own making; tokens are counted as words; returned from mount."""

from copy import deepcopy

__amplifier_module_type__ = "context"


def words(message):
    text = message.get("content")
    if isinstance(text, list):
        text = " ".join(str(block.get("text") or block.get("thinking") or "") for block in text)
    calls = message.get("tool_calls") or []
    return len((text or "").split()) + 8 * len(calls) + 3


class SummarisingContext:
    name = "summarising"

    def __init__(self, coordinator, limit):
        self.coordinator = coordinator
        self.limit = limit
        self.log = []

    async def add_message(self, message: dict) -> None:
        if not isinstance(message.get("role"), str):
            raise ValueError(f"role missing in {message!r}")
        self.log.append(deepcopy(message))

    async def get_messages(self) -> list:
        return deepcopy(self.log)

    async def set_messages(self, messages: list) -> None:
        self.log[:] = deepcopy(messages)

    async def clear(self) -> None:
        self.log.clear()

    async def get_messages_for_request(self, token_budget: int | None = None, provider=None) -> list:
        budget = self._limit(token_budget, provider)
        log = deepcopy(self.log)
        size = sum(words(message) for message in log)
        if size <= budget:
            return log
        emit = self.coordinator.hooks.emit
        await emit("context:pre_compact", {"message_count": len(log), "token_count": size})
        start = self._start(log, budget)
        system = [message for message in log if message["role"] == "system"]
        recent = [message for message in log[start:] if message["role"] != "system"]
        note = {"role": "user", "content": f"[{start} earlier messages were left out]"}
        view = [*system, note, *recent]
        await emit("context:post_compact", {"message_count": len(view), "token_count": sum(map(words, view))})
        return view

    def _start(self, log, budget):
        """The earliest place to begin from which everything fits and no result stands without its call."""
        left = budget - sum(words(message) for message in log if message["role"] == "system") - 12
        best = None
        needed = set()
        for start in range(len(log) - 1, -1, -1):
            message = log[start]
            if message["role"] == "system":
                continue
            left -= words(message)
            if left < 0 and best is not None:
                break
            if message.get("tool_call_id"):
                needed.add(message["tool_call_id"])
            needed -= {call["id"] for call in message.get("tool_calls") or ()}
            if not needed:
                best = start
        return 0 if best is None else best

    def _limit(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        try:
            defaults = provider.get_info().defaults
            return defaults["context_window"] - defaults["max_output_tokens"] - defaults["context_window"] // 50
        except (AttributeError, KeyError, TypeError):
            return self.limit


async def mount(coordinator, config):
    coordinator.register_contributor(
        "observability.events", "summarising", lambda: ["context:pre_compact", "context:post_compact"]
    )
    return SummarisingContext(coordinator, int((config or {}).get("limit", 50_000)))
