"""Which chunks have been run, on disk after each one, so that the programme goes on where it was stopped."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from tests._support.tree import SOURCE, python_files

from .parts import Outcome

FILE = "state.json"


@attrs.frozen
class Result:
    """The outcome of one chunk.

    Args:
        outcome: What it found.
        seconds: How long it took.
        ended: When it ended, ISO 8601.
        sources: `digest_of_sources` at that time.
    """

    outcome: Outcome
    seconds: float
    ended: str
    sources: str


class StateError(Exception):
    """The state file cannot be used."""


class Progress:
    """The results so far.

    Args:
        folder: Holds the state file; is made when the first result comes.
        sources: The digest of the sources under test. A result of other sources does not count.

    Attributes:
        shares: The share of each class that was begun.

    Raises:
        StateError: The file is not readable.
    """

    def __init__(self, folder: Path, sources: str) -> None:
        self._file = folder / FILE
        self._sources = sources
        self.shares: dict[str, float] = {}
        self._results: dict[str, dict[str, Result]] = {}
        self._read()

    def _read(self) -> None:
        try:
            state: Any = json.loads(self._file.read_text())
            self.shares = {str(name): float(share) for name, share in state["shares"].items()}
            self._results = {
                name: {
                    chunk: Result(Outcome(**found["outcome"]), found["seconds"], found["ended"], found["sources"])
                    for chunk, found in chunks.items()
                }
                for name, chunks in state["results"].items()
            }
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise StateError(f"{self._file} is no state of the programme ({exc!r}); start over with --fresh") from exc

    def begin(self, fault_class: str, share: float) -> None:
        """A share of a class is to be run.

        Raises:
            StateError: Another share of it was begun.
        """
        begun = self.shares.setdefault(fault_class, share)
        if begun != share:
            raise StateError(
                f"{fault_class} was begun with --share {begun:g}, not {share:g}; "
                f"go on with --share {begun:g} or start over with --fresh"
            )

    def result(self, fault_class: str, chunk: str) -> Result | None:
        """The result of a chunk with these sources, if it has been run."""
        found = self._results.get(fault_class, {}).get(chunk)
        return found if found is not None and found.sources == self._sources else None

    def is_done(self, fault_class: str, chunk: str) -> bool:
        """Whether the chunk needs no further run; one that failed does."""
        found = self.result(fault_class, chunk)
        return found is not None and not found.outcome.failures

    def note(self, fault_class: str, chunk: str, outcome: Outcome, seconds: float) -> None:
        """Keep a result, on disk before this returns."""
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        self._results.setdefault(fault_class, {})[chunk] = Result(outcome, round(seconds, 1), ended, self._sources)
        state = {
            "shares": self.shares,
            "results": {
                name: {chunk: attrs.asdict(result) for chunk, result in chunks.items()}
                for name, chunks in self._results.items()
            },
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1))
        os.replace(new, self._file)


def forget(folder: Path) -> None:
    """Remove the state, so that the programme starts from the beginning."""
    (folder / FILE).unlink(missing_ok=True)


def digest_of_sources() -> str:
    """A digest of all Python files under test."""
    digest = hashlib.sha256()
    for path in python_files(SOURCE):
        digest.update(path.relative_to(SOURCE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
