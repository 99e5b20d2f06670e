"""``python -m amplifier``: the same as the command ``amplifier``."""

from __future__ import annotations

import sys

from amplifier.cli import main

if __name__ == "__main__":
    sys.exit(main())
