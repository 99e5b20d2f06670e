"""The tables that turns are kept in, for SQLite and Postgres alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from .._errors import DurableError
from ._database import Database, Run

FORMAT = 1
"""Of the tables and what is in them; a version that changes it has to read the ones before."""

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS amplifier_turns (
        turn_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        state TEXT NOT NULL,
        is_open INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        deaths INTEGER NOT NULL,
        queued_at DOUBLE PRECISION NOT NULL,
        started_at DOUBLE PRECISION NOT NULL DEFAULT 0,
        ended_at DOUBLE PRECISION,
        priority INTEGER NOT NULL DEFAULT 3,
        due_at DOUBLE PRECISION,
        deadline_at DOUBLE PRECISION,
        worker TEXT,
        plan TEXT,
        stop TEXT,
        answer TEXT,
        error_type TEXT,
        error TEXT
    )
    """,
    # A session has one open turn; two callers that start one at the same moment cannot both succeed.
    "CREATE UNIQUE INDEX IF NOT EXISTS amplifier_open_turn ON amplifier_turns (session_id) WHERE is_open = 1",
    "CREATE UNIQUE INDEX IF NOT EXISTS amplifier_turn_number ON amplifier_turns (session_id, number)",
    "CREATE INDEX IF NOT EXISTS amplifier_turn_listed ON amplifier_turns (state, started_at)",
    "CREATE INDEX IF NOT EXISTS amplifier_turn_started ON amplifier_turns (started_at)",
    """
    CREATE TABLE IF NOT EXISTS amplifier_steps (
        turn_id TEXT NOT NULL,
        step TEXT NOT NULL,
        what TEXT NOT NULL,
        result TEXT,
        PRIMARY KEY (turn_id, step, what)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_questions (
        turn_id TEXT NOT NULL,
        question_id TEXT NOT NULL,
        details TEXT NOT NULL,
        answer TEXT,
        PRIMARY KEY (turn_id, question_id)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_events (
        turn_id TEXT NOT NULL,
        last_position INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        events TEXT NOT NULL,
        PRIMARY KEY (turn_id, last_position)
    )
    """,
    "CREATE TABLE IF NOT EXISTS amplifier_conversations (session_id TEXT PRIMARY KEY, messages TEXT NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS amplifier_schedules (
        name TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        prompt TEXT NOT NULL,
        every BIGINT NOT NULL,
        next_at DOUBLE PRECISION NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_notices (
        turn_id TEXT PRIMARY KEY,
        url TEXT NOT NULL,
        tries INTEGER NOT NULL,
        next_at DOUBLE PRECISION NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS amplifier_workers (worker TEXT PRIMARY KEY, beats INTEGER NOT NULL)",
)


def create_tables(run: Run) -> None:
    """Create what is missing.

    Raises:
        DurableError: A newer version wrote the tables.
    """
    run("CREATE TABLE IF NOT EXISTS amplifier_format (id INTEGER PRIMARY KEY, format INTEGER NOT NULL)")
    run(
        "INSERT INTO amplifier_format (id, format) VALUES (1, :format) ON CONFLICT (id) DO NOTHING RETURNING id",
        format=FORMAT,
    )
    [(found,)] = run("SELECT format FROM amplifier_format WHERE id = 1 FOR UPDATE")
    if found > FORMAT:
        raise DurableError(
            f"the tables have format {found}; this version of amplifier knows formats up to {FORMAT}. Nothing was changed: "
            "upgrade amplifier here, or use another database"
        )
    for table in _TABLES:
        run(table)


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[None]:
    """Connect to a database and create the tables; on leaving, close it.

    Raises:
        EngineUnavailableError: It cannot be reached.
        DurableError: A newer version wrote the tables.
    """
    try:
        await database(create_tables, patience=0)
        yield
    finally:
        with anyio.CancelScope(shield=True):  # closing a connection does not wait for a server
            await anyio.to_thread.run_sync(database.close)
