"""Where the engines under test keep their turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
import sqlalchemy as sa

from amplifier.durable import DurableEngine
from amplifier.durable.temporal import open_temporal_engine
from tests._support.engine_servers import Postgres, Temporal, postgres, temporal
from tests.durable.agents import open_engine


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def temporal_server(request: pytest.FixtureRequest) -> Iterator[Temporal | None]:
    """A server, if a test wants one; before the first test, since it and the threads of the SDK stay until the last."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    if not any(each.get("kind") == "temporal" for each in params):
        yield None
        return
    with temporal() as server:

        async def use_sdk() -> None:
            async with open_temporal_engine(server.address, task_queue="first-use"):
                pass

        anyio.run(use_sdk)
        yield server


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A folder, the URL of an empty database of the server's, or the address of a server with a task queue of its own."""
    if kind == "temporal":
        return f"{request.getfixturevalue('temporal_server').address}/test-{uuid4().hex[:12]}"
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
