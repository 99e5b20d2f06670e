"""The manual is built where Sphinx is installed: in the environment for development, not in those of the other Pythons.

Programs with other libraries run where those are installed, by ``make .venv-bench/.rivals``, or in an environment that a variable names.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from tests._support.tree import ROOT

collect_ignore = [] if find_spec("sphinx") else ["test_site.py"]
if "AMPLIFIER_TEST_RIVALS" not in os.environ and not (ROOT / ".venv-bench" / ".rivals").exists():
    collect_ignore.append("test_other_libraries.py")
