"""What pytest loads in every environment this package is installed in; therefore it does next to nothing by itself.

It turns the suites of `amplifier.conformance.suites` into tests, one for each clause and backend, and offers recorded answers
of models to tests with the fixture ``amplifier_cassette``, scripted ones with ``amplifier_script``. The file imports pytest
and nothing else at the top, so that suites which have nothing to do with agents do not pay for it. It sits at the outside
edge of the package: nothing imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from amplifier.conformance.suites import Suite, ToolSuite
    from amplifier.testing import Cassette, MockProvider

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
        help="what amplifier_cassette may record: none (the default), once (what has no file yet), or new (every request that "
        "is not recorded)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers: which clauses a test checks, and where its recorded answers are."""
    config.addinivalue_line(
        "markers",
        "amplifier_clause(*ids): the clauses of a module contract that this test checks, for example T3",
    )
    config.addinivalue_line(
        "markers",
        "amplifier_cassette(file=None, *, mode='none', placeholders=None, ignore=()): the file of amplifier_cassette, "
        "relative to the test's folder, and how it records; --amplifier-cassettes takes precedence over mode",
    )


@pytest.fixture
def amplifier_cassette(request: pytest.FixtureRequest) -> Cassette:
    """Recorded answers for the sessions of this test: ``AmplifierSession(amplifier_cassette.plan(plan))``.

    The file is ``cassettes/FILE/TEST.jsonl`` beside the test, unless the marker of this name gives another. It holds all sessions of
    the test, in the order in which they are opened. The names of event loops are left out of it, so that a test records on one and replays on both.
    """
    from amplifier.testing import Cassette  # noqa: PLC0415 — paid for by those who ask

    given = {"mode": "none"}
    folder, name = request.path.parent, _without_backend(request.node.name)
    path = folder / "cassettes" / request.path.stem / f"{name}.jsonl"
    if (marker := request.node.get_closest_marker("amplifier_cassette")) is not None:
        given |= marker.kwargs
        file = given.pop("file", None) or (marker.args[0] if marker.args else None)
        path = path if file is None else folder / file
    if (chosen := request.config.getoption("--amplifier-cassettes")) is not None:
        given["mode"] = chosen
    try:
        cassette = Cassette(path, **given)  # type: ignore[arg-type]  # a marker's keywords; Cassette checks the mode
    except (TypeError, ValueError) as error:
        pytest.fail(f"amplifier_cassette: {error}", pytrace=False)
    if not cassette.asks_providers and not cassette.path.exists():
        pytest.fail(
            f"{path} is not recorded; record it: pytest --amplifier-cassettes once", pytrace=False
        )
    return cassette


@pytest.fixture
def amplifier_script() -> Iterator[Callable[..., MockProvider]]:
    """`amplifier.testing.script`, checked at the end of the test: ``agent(amplifier_script("Hello."))``."""
    from amplifier.testing import script  # noqa: PLC0415 — paid for by those who ask

    made: list[MockProvider] = []

    def make(*turns: Any) -> MockProvider:
        made.append(script(*turns))
        return made[-1]

    yield make
    for model in made:
        model.assert_exhausted()


def _without_backend(name: str) -> str:
    """A test's name as the name of a file: ``test_x[trio-a/b]`` is ``test_x-a_b``."""
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
    suites: Any = sys.modules.get(_SUITES)  # a file that has a suite has imported them
    if suites is None or not isinstance(obj, suites.Suite | suites.ToolSuite):
        return None
    made: pytest.Collector = _Clauses.from_parent(collector, name=name, suite=obj)
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the commands that help where a test, or a process that it started, could not import ``amplifier_core``."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    if any(
        "No module named 'amplifier_core'" in getattr(report, "longreprtext", "")
        for report in reports
    ):
        from amplifier.loading.importing import ENABLE_ALIAS  # noqa: PLC0415 — paid for by those who need it

        terminalreporter.section("amplifier_core")
        terminalreporter.line(
            "amplifier_core is an alias of this kernel: run pytest with `-p amplifier.compat.pytest`; for processes "
            f"that are given a PYTHONPATH of their own, {ENABLE_ALIAS}"
        )


class _Clauses(pytest.Collector):
    """The clauses of a suite that is one line."""

    def __init__(self, *, suite: Suite | ToolSuite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Item]:
        from amplifier.errors import AmplifierError  # noqa: PLC0415 — paid for by those who have a suite

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
        from amplifier.errors import AmplifierError  # noqa: PLC0415 — as above

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
        # A line there must be: pytest wants one for an item that is skipped by a mark.
        line = self.parent.reportinfo()[1] if isinstance(self.parent, pytest.Class) else 0
        return self.path, line, f"{self._suite.module} {self._clause} on {self._backend}"
