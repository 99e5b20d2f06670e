"""Sound: SQLite in a worker thread, in memory unless the plan names a database."""

import json
import sqlite3
import threading

import anyio.to_thread

__amplifier_module_type__ = "context"


class SqliteContext:
    def __init__(self, database, session, hooks, limit):
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, session TEXT, message TEXT)")
        self._session = session
        self._guard = threading.Lock()
        self._hooks = hooks
        self._limit = limit

    def _insert(self, texts, first_delete):
        with self._guard:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if first_delete:
                    self._connection.execute("DELETE FROM log WHERE session = ?", (self._session,))
                rows = [(self._session, text) for text in texts]
                self._connection.executemany("INSERT INTO log (session, message) VALUES (?, ?)", rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _select(self):
        with self._guard:
            query = "SELECT message FROM log WHERE session = ? ORDER BY id"
            return [json.loads(text) for (text,) in self._connection.execute(query, (self._session,))]

    async def add_message(self, message):
        if not message.get("role"):
            raise ValueError("message without a role")
        await anyio.to_thread.run_sync(self._insert, [json.dumps(message)], False)

    async def set_messages(self, messages):
        await anyio.to_thread.run_sync(self._insert, [json.dumps(message) for message in messages], True)

    async def clear(self):
        await anyio.to_thread.run_sync(self._insert, [], True)

    async def get_messages(self):
        return await anyio.to_thread.run_sync(self._select)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        messages = await self.get_messages()
        budget = self._budget(token_budget, provider)
        costs = [len(json.dumps(message)) / 3.5 for message in messages]
        if sum(costs) <= budget:
            return messages
        await self._tell("context:pre_compact", messages, costs)
        # From the end back; a view may begin at any message but between a call and its results.
        starts = [at for at, message in enumerate(messages) if message["role"] != "system"]
        owed = {}
        for at, message in enumerate(messages):
            for call in calls_in(message):
                owed[call["id"]] = at
        spans = [
            (owed[message["tool_call_id"]], at) for at, message in enumerate(messages) if message["role"] == "tool"
        ]
        starts = [at for at in starts if not any(first < at <= last for first, last in spans)] or [0]
        system = sum(cost for cost, message in zip(costs, messages, strict=True) if message["role"] == "system")
        begin = starts[-1]
        for start in reversed(starts):
            rest = sum(costs[at] for at in range(start, len(messages)) if messages[at]["role"] != "system")
            if system + rest > budget:
                break
            begin = start
        shown = [at for at, message in enumerate(messages) if at >= begin or message["role"] == "system"]
        view = [messages[at] for at in shown]
        await self._tell("context:post_compact", view, [costs[at] for at in shown])
        return view

    async def _tell(self, event, messages, costs):
        await self._hooks.emit(event, {"message_count": len(messages), "token_count": int(sum(costs))})

    def _budget(self, token_budget, provider):
        if token_budget is not None:
            return token_budget
        defaults = getattr(provider.get_info(), "defaults", None) if provider is not None else None
        window = (defaults or {}).get("context_window")
        return window - (defaults.get("max_output_tokens") or 0) - 1024 if window else self._limit

    def close(self):
        with self._guard:
            self._connection.close()


def calls_in(message):
    """The calls of a message, which stand in a field or in blocks."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    made = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_call"]
    return [*(message.get("tool_calls") or []), *made]


async def mount(coordinator, config):
    database = config.get("database", ":memory:")
    context = SqliteContext(database, coordinator.session_id, coordinator.hooks, config.get("max_tokens", 100_000))
    try:
        await coordinator.mount("context", context)
    except BaseException:
        context.close()
        raise
    return context.close
