"""The process of one chunk: prints its outcome as the last line.

python -m tests.fault_programme.child CLASS ARGUMENTS-AS-JSON
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

import attrs

from .catalogue import CLASSES


def main(name: str, arguments: str) -> None:
    """Run the chunk of the command line."""
    # Modules fail on purpose by the thousand, and what is logged about that goes nowhere by default.
    logging.lastResort = None
    # A shell lets its background jobs ignore Ctrl-C, and what is ignored here would be ignored by all processes of the chunk.
    for each, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        signal.signal(each, default)
    given: dict[str, Any] = json.loads(arguments)
    print(json.dumps({"outcome": attrs.asdict(CLASSES[name].run(**given))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
