"""Where the engines under test keep their turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests._support.engine_servers import Postgres, postgres


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
