"""The library is a guest in its host's loop: it uses public API, and changes nothing that belongs to its host."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests._support.tree import SOURCE, parse, python_files

# Virtual time, the sweep of cancellations and the search for leaks look into the backends. They run
# in tests and in the worker of the kit only.
MAY_LOOK_INSIDE = ("testing/", "conformance/target/")

ALLOWED = {
    # The command line is a process of ours.
    "cli/agent/agent_run.py: open_signal_receiver",
    "cli/agent/signals.py: open_signal_receiver",
    # The supervisor is a process of ours.
    "_internal/supervisor.py: signal.signal",
    "_internal/supervisor.py: signal.set_wakeup_fd",
    # `CheckContext.watchdog` rings in the worker of the kit only: without `abort` it does nothing.
    "conformance/target/mounted.py: signal.signal",
    "conformance/target/mounted.py: signal.setitimer",
    # The worker of the kit puts back the handlers that a module has replaced, and continues below a
    # process that ends what a module has left behind.
    "conformance/target/process.py: signal.signal",
    "conformance/target/process.py: signal.pthread_sigmask",
    # `examine_plan(alarm=True)`, which the command `amplifier plan prove` passes.
    "conformance/proof/search.py: signal.signal",
    "conformance/proof/search.py: signal.setitimer",
    # An application switches it on by name.
    "tracing/_tasks.py: signal.signal",
    # The command `python -m amplifier.compat` is a process of ours, and so is the worker of the kit.
    "compat/__main__.py: sys.argv is replaced",
    "conformance/engine/worker.py: logging.raiseExceptions is replaced",
    # `compat.install()` notes the processes that published tools start, `uninstall()` takes it back.
    "compat/_processes.py: subprocess.Popen.__init__ is replaced",
}

_LIBRARIES = ("asyncio", "anyio", "trio", "sniffio", "outcome")
_PRIVATE_MODULE = re.compile(rf"({'|'.join(_LIBRARIES)})(\.\w+)*\._\w+(\.\w+)*")
_OF_SIGNALS = frozenset(
    {
        "add_signal_handler",
        "alarm",
        "open_signal_receiver",
        "pthread_sigmask",
        "set_wakeup_fd",
        "setitimer",
        "siginterrupt",
    }
)
_OF_THE_COLLECTOR = frozenset({"get_objects", "get_referents", "get_referrers"})
_BY_NAME = frozenset({"attrgetter", "delattr", "getattr", "hasattr", "setattr"})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Yield what a file defines: functions, classes, and attributes of ``self`` and of classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) in ("self", "cls")
        ):
            yield node.attr


@cache
def private_names_of_libraries() -> frozenset[str]:
    """The private names in the source of the event loops, and of what they are made of."""
    names: set[str] = set()
    for library in _LIBRARIES:
        spec = find_spec(library)
        assert spec is not None
        assert spec.origin is not None
        for path in Path(spec.origin).parent.rglob("*.py"):
            if "_tests" not in path.parts:
                names.update(filter(is_private, defined_names(ast.parse(path.read_bytes()))))
    return frozenset(names)


@cache
def own_names(folder: Path) -> frozenset[str]:
    return frozenset(name for path in folder.glob("*.py") for name in defined_names(parse(path)))


def dotted(node: ast.AST) -> str:
    """The text of a name or of attributes of one, such as ``subprocess.Popen.__init__``; else nothing."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def imported_roots(tree: ast.AST) -> set[str]:
    """The names in a file that imports from other libraries have bound."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] != "amplifier"
        ):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def problems_in(tree: ast.AST, file: str, own: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what a file does to its host, as ``file: use``.

    Args:
        tree: The file.
        file: Its path below the package.
        own: The names that files of the same folder define.
    """
    looks_inside = file.startswith(MAY_LOOK_INSIDE)
    roots = imported_roots(tree)
    for node in ast.walk(tree):
        for name in private_uses(node):
            if (name in private_names_of_libraries() - own or "." in name) and not looks_inside:
                yield f"{file}: {name}"
        if isinstance(node, ast.Import | ast.ImportFrom) and not looks_inside:
            yield from (f"{file}: {name}" for name in private_imports(node))
        if isinstance(node, ast.ImportFrom | ast.Attribute | ast.Name):
            yield from (f"{file}: {name}" for name in calls_of_the_system(node, looks_inside))
        for target in assigned(node):
            if target.partition(".")[0] in roots and not looks_inside:
                yield f"{file}: {target} is replaced"


def private_uses(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and dotted(node.value) not in ("self", "cls", "os", "sys")
    ):
        yield node.attr
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _BY_NAME:
        for argument in node.args:
            if (
                isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and is_private(argument.value)
            ):
                yield argument.value
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _PRIVATE_MODULE.fullmatch(node.value)
    ):
        yield node.value


def private_imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        names = [] if node.level else [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = [alias.name for alias in node.names]
    for name in names:
        parts = name.split(".")
        if parts[0] in _LIBRARIES and any(map(is_private, parts)):
            yield name


def calls_of_the_system(
    node: ast.ImportFrom | ast.Attribute | ast.Name, looks_inside: bool
) -> Iterator[str]:
    """Yield signal handlers, and questions to the garbage collector about other objects."""
    if isinstance(node, ast.ImportFrom):
        wanted = {"signal": {"signal", *_OF_SIGNALS}, "gc": _OF_THE_COLLECTOR}.get(
            node.module or "", frozenset()
        )
        yield from (
            f"from {node.module} import {alias.name}"
            for alias in node.names
            if alias.name in wanted
        )
        return
    name = dotted(node)
    last = name.rpartition(".")[2]
    if name == "signal.signal" or (
        last in _OF_SIGNALS and (name != last or last == "open_signal_receiver")
    ):
        yield last if last in ("add_signal_handler", "open_signal_receiver") else name
    if name.startswith("gc.") and last in _OF_THE_COLLECTOR and not looks_inside:
        yield name


def assigned(node: ast.AST) -> Iterator[str]:
    """Yield the attributes of a name that a statement assigns or deletes, also with `setattr`."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr") and node.args:
        name, attribute = dotted(node.args[0]), node.args[1] if len(node.args) > 1 else None
        if name and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            yield f"{name}.{attribute.value}"
    yield from (dotted(target) for target in targets if isinstance(target, ast.Attribute))


@pytest.mark.slow
def test_source_uses_public_api_only():
    found = {
        problem
        for path in python_files(SOURCE)
        for problem in problems_in(
            parse(path), path.relative_to(SOURCE).as_posix(), own_names(path.parent)
        )
    }
    assert sorted(found - ALLOWED) == []
    assert sorted(ALLOWED - found) == [], "delete what is no longer used from the list"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("task._fut_waiter", "_fut_waiter"),
        ("getattr(task, '_must_cancel', None)", "_must_cancel"),
        ("loop._scheduled.clear()", "_scheduled"),
        ("task._cancel_status = None", "_cancel_status"),
        ("operator.attrgetter('_cancel_status')", "_cancel_status"),
        ("from anyio._core._eventloop import threadlocals", "anyio._core._eventloop.threadlocals"),
        ("def late():\n    import trio._core", "trio._core"),
        ("sys.modules['trio._core._run']", "trio._core._run"),
        ("import gc\ngc.get_referents(coroutine)", "gc.get_referents"),
        ("from gc import get_referents", "from gc import get_referents"),
        ("import signal\nsignal.signal(signal.SIGINT, stop)", "signal.signal"),
        ("from signal import signal", "from signal import signal"),
        ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 1)", "signal.setitimer"),
        ("loop.add_signal_handler(2, stop)", "add_signal_handler"),
        ("with anyio.open_signal_receiver(2): pass", "open_signal_receiver"),
        ("from anyio import open_signal_receiver\nopen_signal_receiver(2)", "open_signal_receiver"),
        ("import anyio\nanyio.run = refuse", "anyio.run is replaced"),
        ("from subprocess import Popen\nPopen.__init__ = noted", "Popen.__init__ is replaced"),
        (
            "import anyio\nsetattr(anyio.CancelScope, 'cancel', other)",
            "anyio.CancelScope.cancel is replaced",
        ),
        ("import trio\ndel trio.CancelScope.__hash__", "trio.CancelScope.__hash__ is replaced"),
    ],
)
def test_planted_violation_is_found(code, problem):
    tree = ast.parse(code)
    assert f"kernel/planted.py: {problem}" in list(problems_in(tree, "kernel/planted.py"))


@pytest.mark.parametrize(
    "code",
    [
        "self._scope.cancel()",
        "os._exit(1)",
        "import gc\ngc.collect()",
        "import signal\nos.kill(pid, signal.SIGTERM)",
        "import signal\nsignal.getsignal(signal.SIGINT)",
        "import anyio\nscope = anyio.CancelScope()\nscope.shield = True",
        "trio.lowlevel.current_root_task().child_nurseries",
        "asyncio.all_tasks()",
    ],
)
def test_public_api_is_not_violation(code):
    assert list(problems_in(ast.parse(code), "kernel/planted.py")) == []


def test_libraries_have_expected_names():
    assert {
        "_fut_waiter",
        "_must_cancel",
        "_cancel_status",
        "_task_states",
    } <= private_names_of_libraries()
