"""What the suites share with the tests of the parts that they are about."""

from tests.cli.conftest import backend, home, plan, workdir
from tests.modules.hooks.otel.conftest import traces
from tests.servers.http.conftest import server

__all__ = ["backend", "home", "plan", "server", "traces", "workdir"]
