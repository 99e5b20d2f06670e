"""The function that opens an engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Unpack

from ._engine import DurableEngine
from ._suspects import EngineOptions, Settings

VARIABLE = "AMPLIFIER_TURNS"


@asynccontextmanager
async def open_engine(
    url: str | Path | None = None, **options: Unpack[EngineOptions]
) -> AsyncIterator[DurableEngine]:
    """Open an engine. This needs the extra ``durable``.

    Args:
        url: A file, as a path or ``sqlite:///path``, for one worker process on this machine, or
            ``postgresql://user:password@host/database`` for any number of them. None reads the
            environment variable ``AMPLIFIER_TURNS``.
        options: See `EngineOptions`.

    Raises:
        EngineUnavailableError: The database can't be reached, or the file isn't a database.
        MissingExtraError: The extra isn't installed.
        ValueError: The URL doesn't name a database, or an option has an invalid value.
    """
    settings = Settings(**options)
    name = str(os.environ.get(VARIABLE, "") if url is None else url)
    if not name:
        raise ValueError(
            "expected a file or the URL of a database, or one in the variable "
            f"{VARIABLE}; got neither"
        )
    from ._database import opened_database  # noqa: PLC0415 — an extra
    from ._turns import Turns  # noqa: PLC0415
    from ._worker import work  # noqa: PLC0415

    async with opened_database(name, settings) as database:
        turns = Turns(database, settings.version)
        yield DurableEngine(turns, settings, partial(work, turns, settings))
