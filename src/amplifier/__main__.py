"""``python -m amplifier``: the same as the command ``amplifier``."""

from __future__ import annotations

import os
import sys

# As with the command, nothing is imported from the current folder.
if (
    not sys.flags.safe_path
    and sys.path[0] == os.getcwd()  # noqa: PTH109
    and not __file__.startswith(f"{os.getcwd()}/amplifier/")  # noqa: PTH109
):
    del sys.path[0]

from amplifier.cli import main

if __name__ == "__main__":
    sys.exit(main())
