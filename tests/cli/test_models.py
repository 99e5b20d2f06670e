"""`amplifier models`: what providers offer, and what to do when there is none."""

from __future__ import annotations

import json

import pytest

from tests._support.terminal import run_cli


def test_provider_models_are_listed(backend, home, workdir):
    listed = run_cli(
        "models", "-p", "offline", "--json", "--backend", backend, home=home, cwd=workdir
    )
    (model,) = json.loads(listed.stdout)
    assert (listed.returncode, model["provider"], model["input"]) == (0, "offline", "$0.00")
    assert model["context"] > 0
    plain = run_cli("models", "-p", "offline", home=home, cwd=workdir)
    assert plain.stdout.split("\t")[:2] == ["offline", model["model"]]
    assert "amplifier run -p PROVIDER -m MODEL" in plain.stderr
    assert (
        run_cli("models", "-p", "offline", "nothing-like-that", home=home, cwd=workdir).stdout == ""
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "-p", "antropic"), "did you mean 'anthropic'?"),
        (("run", "-p", "antropic", "hello"), "did you mean 'anthropic'?"),
        (
            ("run", "-p", "local", "hello"),
            "no provider 'local' is installed; provider-local was removed: serve the model",
        ),
    ],
)
def test_unusable_provider_is_refused_with_advice(arguments, message, home, workdir):
    refused = run_cli(*arguments, home=home, cwd=workdir)
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr


def test_configured_provider_is_listed_without_key(home, workdir):
    home.mkdir()
    (home / "config.toml").write_text('provider = "offline"\n')
    listed = run_cli("models", "--json", home=home, cwd=workdir)
    assert "offline" in {model["provider"] for model in json.loads(listed.stdout)}


def test_configured_compatible_server_is_listed(home, workdir):
    """Nothing listens there, so the report names it as the one that gives no list."""
    home.mkdir()
    config = '[modules.provider-openai-compatible.config]\nbase_url = "http://127.0.0.1:9/v1"\ndefault_model = "x"\n'
    (home / "config.toml").write_text(config)
    listed = run_cli("models", "-p", "openai-compatible", home=home, cwd=workdir)
    every = run_cli("models", home=home, cwd=workdir)
    assert listed.returncode == every.returncode
    assert "openai-compatible" in every.stdout + every.stderr
