"""The pytest plugin: conformance suites as tests, and recorded or scripted answers of models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from amplifier.conformance.suites import Suite, ToolSuite
    from amplifier.testing import Cassette, MockProvider

# pytest loads this file wherever the package is installed. It imports nothing else at the top, so
# that unrelated suites don't pay for it.

__all__ = [
    "amplifier_cassette",
    "amplifier_script",
    "pytest_addoption",
    "pytest_configure",
    "pytest_pycollect_makeitem",
    "pytest_terminal_summary",
]

_SUITES = "amplifier.conformance.suites"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.getgroup("amplifier").addoption(
        "--amplifier-cassettes",
        choices=["none", "once", "new"],
        help="requests that amplifier_cassette may record: none (the default), once (those of "
        "tests without a file), or new (those that are not recorded)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers for the clauses and the recorded answers of a test."""
    config.addinivalue_line(
        "markers",
        "amplifier_clause(*ids): the clauses of a module contract that this test checks, "
        "for example T3",
    )
    config.addinivalue_line(
        "markers",
        "amplifier_cassette(file=None, *, mode='none', placeholders=None, ignore=()): the file of "
        "amplifier_cassette, relative to the test's folder, and its way of recording; "
        "--amplifier-cassettes takes precedence over mode",
    )


@pytest.fixture
def amplifier_cassette(request: pytest.FixtureRequest) -> Cassette:
    """Provide recorded answers: ``AmplifierSession(amplifier_cassette.plan(plan))``.

    The file is ``cassettes/FILE/TEST.jsonl`` beside the test, unless the marker of this name gives
    another. It has all sessions of the test in the order of their opening. Names of backends are
    left out of it, so that a test records on one backend and replays on both.
    """
    from amplifier.testing import Cassette  # noqa: PLC0415 — see above

    options = {"mode": "none"}
    folder, name = request.path.parent, _without_backend(request.node.name)
    path = folder / "cassettes" / request.path.stem / f"{name}.jsonl"
    if (marker := request.node.get_closest_marker("amplifier_cassette")) is not None:
        options |= marker.kwargs
        file = options.pop("file", None) or (marker.args[0] if marker.args else None)
        path = path if file is None else folder / file
    if (chosen := request.config.getoption("--amplifier-cassettes")) is not None:
        options["mode"] = chosen
    try:
        # These are the keywords of a marker. Cassette checks the mode.
        cassette = Cassette(path, **options)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        pytest.fail(f"amplifier_cassette: {error}", pytrace=False)
    if not cassette.asks_providers and not cassette.path.exists():
        pytest.fail(
            f"{path} is not recorded; record it: pytest --amplifier-cassettes once", pytrace=False
        )
    return cassette


@pytest.fixture
def amplifier_script() -> Iterator[Callable[..., MockProvider]]:
    """Provide `amplifier.testing.script`: ``agent(amplifier_script("Hello."))``.

    The end of the test checks that every answer was used.
    """
    from amplifier.testing import script  # noqa: PLC0415 — see above

    models: list[MockProvider] = []

    def make(*turns: Any) -> MockProvider:
        models.append(script(*turns))
        return models[-1]

    yield make
    for model in models:
        model.assert_exhausted()


def _without_backend(name: str) -> str:
    """Convert a test's name to the name of a file: ``test_x[trio-a/b]`` to ``test_x-a_b``."""
    test, _, parameters = name.removesuffix("]").partition("[")
    kept = [part for part in parameters.split("-") if part and part not in ("asyncio", "trio")]
    return "".join(
        character if character.isalnum() or character in "._-" else "_"
        for character in "-".join([test, *kept])
    )


def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> pytest.Collector | None:
    """Take the conformance suites of a test file."""
    # A file with a suite has imported them.
    suites: Any = sys.modules.get(_SUITES)
    if suites is None or not isinstance(obj, suites.Suite | suites.ToolSuite):
        return None
    clauses: pytest.Collector = _Clauses.from_parent(collector, name=name, suite=obj)
    return clauses


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the option for tests and processes that could not import ``amplifier_core``."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    if any(
        "No module named 'amplifier_core'" in getattr(report, "longreprtext", "")
        for report in reports
    ):
        from amplifier.loading.importing import ENABLE_ALIAS  # noqa: PLC0415 — see above

        terminalreporter.section("amplifier_core")
        terminalreporter.line(
            "amplifier_core is an alias of this kernel: run pytest with "
            "`-p amplifier.compat.pytest`; for processes with a different PYTHONPATH, "
            f"{ENABLE_ALIAS}"
        )


class _Clauses(pytest.Collector):
    """The clauses of a suite that is one line."""

    def __init__(self, *, suite: Suite | ToolSuite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Item]:
        from amplifier.errors import AmplifierError  # noqa: PLC0415 — see above

        try:
            clauses = self._suite.clauses()
        except AmplifierError as error:
            raise self.CollectError(str(error)) from error
        for clause in clauses:
            for backend in self._suite.backends:
                name = f"{clause}[{backend}]"
                yield _Clause.from_parent(
                    self, name=name, suite=self._suite, clause=clause, backend=backend
                )


class _Clause(pytest.Item):
    """One clause on one backend."""

    def __init__(
        self, *, suite: Suite | ToolSuite, clause: str, backend: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._suite, self._clause, self._backend = suite, clause, backend
        # Not every item of pytest has this, but pytest-trio, for one, asks every item for it.
        self.obj = self.runtest
        self.add_marker(pytest.mark.amplifier_clause(clause))

    def runtest(self) -> None:
        from amplifier.errors import AmplifierError  # noqa: PLC0415 — see above

        try:
            verdict, text = self._suite.judge(self._clause, self._backend)
        except AmplifierError as error:
            verdict, text = "failed", str(error)
        if verdict == "failed":
            pytest.fail(text, pytrace=False)
        elif verdict == "xfailed":
            pytest.xfail(text)
        elif verdict == "skipped":
            pytest.skip(text)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        # pytest needs a line for an item that a mark skips.
        line = self.parent.reportinfo()[1] if isinstance(self.parent, pytest.Class) else 0
        return self.path, line, f"{self._suite.module} {self._clause} on {self._backend}"
