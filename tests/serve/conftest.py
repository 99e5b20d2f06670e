"""The folders and the plan of the command line's tests."""

from tests.cli.conftest import backend, home, plan, workdir

__all__ = ["backend", "home", "plan", "workdir"]
