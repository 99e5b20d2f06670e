"""Accounts with transfers, in an SQLite file of the session's own under a temporary directory.

A transfer that is cancelled has taken and not given.
"""

import json
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
from typing import Any

import anyio
import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
log = logging.getLogger("ledger")

SCHEMA = {
    "type": "object",
    "properties": {
        "op": {"type": "string", "enum": ["credit", "move", "report"]},
        "account": {"type": "string", "minLength": 1, "maxLength": 80},
        "to": {"type": "string", "minLength": 1, "maxLength": 80},
        "amount": {"type": "integer", "minimum": 0, "maximum": 1_000_000_000},
    },
    "required": ["op"],
}


class Refused(Exception):
    pass


class Ledger:
    name = "ledger"
    description = "Keeps accounts: credit, move, report."

    def __init__(self, file: str) -> None:
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("create table if not exists a (name text primary key, amount integer not null)")
        self._guard = threading.Lock()

    def get_schema(self) -> dict[str, Any]:
        return json.loads(json.dumps(SCHEMA))

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        try:
            steps = self._plan(input)
            output = await anyio.to_thread.run_sync(self._apply, steps[:1])
            for step in steps[1:]:
                output = await anyio.to_thread.run_sync(self._apply, [step])
        except (Refused, sqlite3.Error) as error:
            return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})
        return ToolResult(success=True, output=output)

    def _plan(self, input: dict[str, Any]) -> list[tuple[str, int]]:
        op = input.get("op")
        if op == "report":
            return []
        if op not in ("credit", "move"):
            raise Refused(f"op: expected credit, move or report, got {op!r}")
        amount = input.get("amount", 0)
        if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= 1_000_000_000:
            raise Refused("amount: expected an integer from 0 to 1000000000")
        account = self._named(input.get("account", "main"))
        if op == "credit":
            return [(account, amount)]
        return [(account, -amount), (self._named(input.get("to", "main")), amount)]

    @staticmethod
    def _named(value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= 80:
            raise Refused("account: expected a text of 1 to 80 characters")
        return value.encode("utf-8", "replace").decode()

    def _apply(self, steps: list[tuple[str, int]]) -> dict[str, int]:
        with self._guard:
            self._db.execute("begin immediate")
            try:
                for name, amount in steps:
                    self._db.execute(
                        "insert into a values (?, ?) on conflict (name) do update set amount = amount + ?",
                        (name, amount, amount),
                    )
                rows = self._db.execute("select name, amount from a order by name").fetchall()
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
            return dict(rows)

    def close(self) -> None:
        with self._guard:
            self._db.close()


async def mount(coordinator, config):
    place = tempfile.mkdtemp(prefix="ledger-")
    try:
        tool = Ledger(os.path.join(place, "ledger.db"))
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise

    async def cleanup():
        tool.close()
        shutil.rmtree(place, ignore_errors=True)

    coordinator.register_cleanup(cleanup)
    await coordinator.mount("tools", tool, name=tool.name)
    log.info("ledger in %s", place)
    return cleanup
