"""The environment of a command: an allow-list of the variables of this process, since others may hold API keys."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from .._shared.process_tree import MARK, chained

PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "TERM", "LANG", "LANGUAGE"),
    *("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
)
"""Variables every command gets if they are set; no credentials, sockets of agents, or hooks into programs among them."""


def clean_environment(passed: Iterable[str], added: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment of one command.

    Args:
        passed: Further variables to pass on, if they are set.
        added: Variables of the plan; they override those of this process.
        mark: Names the command, so that its processes can be recognised.
    """
    environment = {name: os.environ[name] for name in (*PASSED_ON, *passed) if name in os.environ}
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("TERM", "dumb")
    # Inside a command that runs an agent the outer mark stays, so that the outer command still knows its own.
    return {**environment, **added, MARK: chained(os.environ.get(MARK), mark)}
