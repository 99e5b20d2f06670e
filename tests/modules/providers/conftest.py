"""A server per test, and every service in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.modules.providers.scripted_http_server import ScriptedHttpServer
from tests.modules.providers.services import SERVICES, ServiceCase


@pytest.fixture
def server() -> Iterator[ScriptedHttpServer]:
    running = ScriptedHttpServer()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceCase:
    return SERVICES[request.param]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to be in this machine's environment does not count, proxies included."""
    for name in ("OPENAI", "ANTHROPIC", "OPENAI_COMPATIBLE"):
        for part in ("API_KEY", "BASE_URL"):
            monkeypatch.delenv(f"{name}_{part}", raising=False)
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
