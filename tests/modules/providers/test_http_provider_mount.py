"""Mounting: keys and addresses from the plan or the environment, declining, wrong plans, and what is not imported."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from amplifier import AmplifierSession
from amplifier.errors import MissingExtraError, MisspellingWarning, PlanError
from amplifier.modules.providers import anthropic as provider_anthropic
from amplifier.modules.providers import openai as provider_openai
from amplifier.modules.providers import openai_compatible as provider_openai_compatible
from amplifier.modules.providers._http_provider import EVENTS, Prices
from amplifier.testing import MockContextManager, TestCoordinator
from tests.modules.providers.services import KEY, SERVICES, ask, mounted, response_of

MODULES = [provider_anthropic, provider_openai, provider_openai_compatible]
VARIABLES = {"anthropic": "ANTHROPIC", "openai": "OPENAI", "openai-compatible": "OPENAI_COMPATIBLE"}


@pytest.mark.parametrize("module", MODULES)
async def test_mount_without_credentials_logs_remedy(module, caplog):
    coordinator = TestCoordinator()
    with caplog.at_level(logging.WARNING):
        assert await module.mount(coordinator, {}) is None
        assert await module.mount(coordinator) is None
    assert coordinator.get("providers") == {}
    assert "is not mounted" in caplog.text
    assert "_API_KEY" in caplog.text or "_BASE_URL" in caplog.text


async def test_key_and_address_from_environment(service, server, monkeypatch):
    prefix = VARIABLES[service.name]
    monkeypatch.setenv(f"{prefix}_API_KEY", f" {KEY}\n")
    monkeypatch.setenv(f"{prefix}_BASE_URL", server.url + service.prefix)
    await response_of(service, server, service.answer(["x"]), api_key=None, base_url=None)
    headers = server.last.headers
    assert (headers.get("x-api-key") or headers.get("authorization")).removeprefix("Bearer ") == KEY


async def test_compatible_server_gets_no_openai_settings(server, monkeypatch):
    service = SERVICES["openai-compatible"]
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, f"secret-{name}")
    await response_of(service, server, service.answer(["x"]), api_key=None)
    assert "secret-" not in str(server.last.headers)


async def test_config_problems_are_listed_without_key(service):
    wrong = {
        "api_key": 12345678,
        "base_url": "localhost:80",
        "max_tokens": 0,
        "temperature": 3,
        "timeout": 0,
        "idle_timeout": -1,
        "reasoning_effort": "extreme",
        "extra_headers": {"a": 1},
    }
    with pytest.raises(PlanError) as caught:
        await service.module.mount(TestCoordinator(), wrong)
    assert [path for path, _ in caught.value.problems] == [f"$.{key}" for key in wrong]
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize("url", ["https://user:pass@host/v1", "ftp://host", 3, "/v1"])
async def test_address_is_checked(url):
    with pytest.raises(PlanError, match="base_url"):
        await provider_openai.mount(TestCoordinator(), {"api_key": KEY, "base_url": url})


@pytest.mark.parametrize(
    "given",
    [
        {"api_key": "sk-kl\u00fcchel"},
        {"extra_headers": {"X-Team": "a\nb"}},
        {"extra_headers": {"\u00fc": "a"}},
    ],
)
async def test_unsendable_header_is_refused_unshown(service, server, given):
    with pytest.raises(PlanError, match="printable ASCII") as caught:
        async with mounted(service, server, **given):
            pytest.fail("it was mounted")
    assert "chel" not in f"{caught.value}{caught.value.__cause__!r}"


async def test_plan_header_replaces_default_in_any_case(service, server):
    replaced = {"x-api-key": "mine"} if service.name == "anthropic" else {"AUTHORIZATION": "mine"}
    await response_of(service, server, service.answer(["x"]), extra_headers=replaced)
    assert KEY not in str(server.last.headers)
    assert "mine" in str(server.last.headers)


async def test_unknown_keys_are_logged(service, server, caplog):
    with pytest.warns(MisspellingWarning, match="did you mean 'default_model'?"):
        async with mounted(
            service, server, debug=True, defualt_model="x", model="my-model"
        ) as opened:
            assert opened.provider.get_info().defaults["model"] == "my-model"
    assert "$.debug: unknown key, ignored" in caplog.text
    assert "did you mean 'default_model'?" in caplog.text


@pytest.mark.parametrize("module", MODULES)
async def test_missing_http_library_names_extra(module, monkeypatch):
    monkeypatch.delitem(sys.modules, "amplifier.modules.providers._http_client", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtraError) as caught:
        await module.mount(TestCoordinator(), {"api_key": KEY, "base_url": "http://127.0.0.1:9/v1"})
    assert caught.value.extra in ("openai", "anthropic")
    assert f"{caught.value.missing} is not installed" in str(caught.value)


async def test_missing_price_library_means_no_price(service, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert (await response_of(service, server, service.answer(["x"]))).usage.cost_usd is None


async def test_provider_events_are_announced(service, server):
    async with mounted(service, server) as opened:
        assert await opened.coordinator.collect_contributions("observability.events") == [
            list(EVENTS)
        ]
        assert opened.provider.priority == 100
        assert KEY not in repr(opened.provider)


async def test_one_module_may_serve_several_servers(server):
    service = SERVICES["openai-compatible"]
    server.answers(service.answer(["x"]))

    entry = {"module": "provider-openai-compatible"}
    servers = [
        {**entry, "instance_id": name, "config": {"base_url": f"{server.url}/{name}"}}
        for name in ("one", "two")
    ]
    plan = {
        "session": {"orchestrator": "loop-basic", "context": MockContextManager()},
        "providers": servers,
    }
    async with AmplifierSession(plan) as session:
        for name in ("one", "two"):
            await session.coordinator.get("providers", name).complete(ask())
            assert server.last.path == f"/{name}/chat/completions"


def test_prices_follow_address():
    known, unknown = Prices(None, "https://api.deepseek.com"), Prices(None, "http://127.0.0.1:1/v1")
    known.load()
    unknown.load()
    used = {"input_tokens": 1000, "output_tokens": 1000}
    assert known.cost("deepseek-chat", used)
    assert unknown.cost("deepseek-chat", used) is None
    assert Prices("openai").cost("gpt-4o", used) is None  # not loaded


@pytest.mark.parametrize("module", [module.__name__ for module in MODULES])
def test_provider_import_needs_no_http_library(module):
    code = f"import {module}, sys; print(*sorted(m for m in sys.modules if m in "
    code += "('openai', 'anthropic', 'httpx2', 'httpx', 'pydantic', 'genai_prices', 'trio')))"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == ""
