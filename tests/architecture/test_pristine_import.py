"""`import amplifier` imports nothing else, and all its names together nothing that belongs to tests, terminals, HTTP or one backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

UNWANTED = [
    *(
        "click",
        "httpx",
        "httpx2",
        "hypercorn",
        "hypothesis",
        "mcp",
        "msgspec",
        "opentelemetry",
        "prompt_toolkit",
        "pydantic",
    ),
    *("pytest", "rich", "starlette", "trio", "unittest", "uvicorn", "yaml"),
]


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after one statement."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(printed(program).split())


def printed(program: str) -> str:
    """What a program prints in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    "statement", ["import amplifier", "from amplifier import *", "import amplifier.testing"]
)
def test_import_loads_nothing_unrequested(statement):
    assert sorted(loaded_after(statement).intersection(UNWANTED)) == []


@pytest.mark.parametrize(
    ("statement", "is_loaded"),
    [
        ("from amplifier.models import HookResult; HookResult()", False),
        ("from amplifier.models import HookResult; HookResult(action='deny')", True),
    ],
)
def test_models_load_cattrs_late(statement, is_loaded):
    """The first value to coerce loads cattrs, which takes longer to import than this package."""
    assert ("cattrs" in loaded_after(statement)) is is_loaded


def ours_after(statement: str) -> list[str]:
    """Modules of this package in a fresh interpreter after one statement."""
    program = f"{statement}\nimport sys\nprint(*(name for name in sys.modules if name.partition('.')[0] == 'amplifier'))"
    return sorted(printed(program).split())


def test_facade_imports_names_lazily():
    alone = ["amplifier", "amplifier._internal", "amplifier._internal.facade"]
    assert (
        ours_after("import amplifier; dir(amplifier); amplifier.__version__; amplifier.__all__")
        == alone
    )
    assert "attrs" not in loaded_after("import amplifier")
    errors_only = ours_after("from amplifier import LLMError")
    assert {name.split(".")[1] for name in errors_only if "." in name} == {"_internal", "errors"}
    assert not any(
        name.startswith("amplifier.kernel")
        for name in ours_after("from amplifier import Tool, ToolResult")
    )


@pytest.mark.parametrize(
    "name", ["compat", "contracts", "errors", "events", "kernel", "loading", "models", "plan"]
)
def test_submodule_is_facade_attribute(name):
    assert printed(f"import amplifier; print(amplifier.{name}.__name__)") == f"amplifier.{name}\n"


def test_dir_and_star_import_are_complete():
    missing = "print(sorted(set(amplifier.__all__) - set({})))"
    assert printed(f"import amplifier; {missing.format('dir(amplifier)')}") == "[]\n"
    assert (
        printed(f"from amplifier import *; import amplifier; {missing.format('globals()')}")
        == "[]\n"
    )


def test_unknown_facade_name_is_attribute_error():
    program = (
        "import amplifier\ntry: amplifier.NoSuchName\nexcept AttributeError as error: print(error)"
    )
    assert printed(program) == "module 'amplifier' has no attribute 'NoSuchName'\n"


def test_early_pickle_is_read_after_facade_use():
    program = (
        "import amplifier, pickle; from amplifier.models import Usage;"
        "usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3);"
        "read = pickle.loads(pickle.dumps(usage)); print(read == usage, type(read) is amplifier.Usage)"
    )
    assert printed(program) == "True True\n"


@pytest.mark.parametrize("door", ["amplifier", "amplifier.loading"])
def test_loader_has_alias_hooks_everywhere(door):
    program = f"from {door} import ModuleLoader; loader = ModuleLoader(); print(loader.import_hook.__module__, loader.load_hook.__module__)"
    assert printed(program) == "amplifier.compat._alias amplifier.compat._alias\n"


def test_kernel_loads_no_event_loop():
    # AnyIO imports a backend when it runs one, so an application on trio never pays for asyncio.
    assert "asyncio" not in loaded_after("from amplifier import *")


def test_pytest_plugin_loads_pytest_only():
    brought = loaded_after("import amplifier.pytest_plugin")
    assert "pytest" in brought
    assert (
        sorted(
            brought.intersection(
                {"click", "httpx", "hypothesis", "pydantic", "rich", "trio", "yaml"}
            )
        )
        == []
    )


def test_planted_import_is_found():
    assert {"hypothesis", "unittest"} <= loaded_after("import hypothesis, unittest").intersection(
        UNWANTED
    )
