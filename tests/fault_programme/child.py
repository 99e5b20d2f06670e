"""The process of one chunk: prints its outcome as the last line.

python -m tests.fault_programme.child CLASS ARGUMENTS-AS-JSON
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import attrs

from .catalogue import CLASSES


def main(name: str, arguments: str) -> None:
    """Run the chunk of the command line."""
    # Modules fail on purpose by the thousand, and what is logged about that goes nowhere by default.
    logging.lastResort = None
    given: dict[str, Any] = json.loads(arguments)
    print(json.dumps({"outcome": attrs.asdict(CLASSES[name].run(**given))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
