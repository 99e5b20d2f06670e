"""Where the engines under test keep their turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from amplifier.durable import DurableEngine
from tests._support.engine_servers import Postgres, postgres
from tests.durable.agents import open_engine


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A folder, or the URL of an empty database of the server's."""
    if kind != "postgres":
        return str(tmp_path)
    server: Postgres = request.getfixturevalue("postgres_server")
    url = sa.make_url(server.url).set(drivername="postgresql+psycopg")
    name = f"test_{uuid4().hex[:12]}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(drivername="postgresql", database=name).render_as_string()


@pytest.fixture
async def engine(kind: str, place: str) -> AsyncIterator[DurableEngine]:
    """An engine of this kind whose workers notice everything quickly, open until the end of the test."""
    async with open_engine(kind, place) as opened:
        yield opened
