"""The driver of the fault programme: what it runs, keeps, resumes and reports."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fault_programme import __main__ as driver
from tests.fault_programme import launch
from tests.fault_programme.catalogue import CLASSES
from tests.fault_programme.classes import planted_bugs
from tests.fault_programme.classes.bug_list import BUGS
from tests.fault_programme.launch import kill_running, run_in_child
from tests.fault_programme.parts import MOST_FAILURES, Chunk, FaultClass, Outcome, part_of, ranges
from tests.fault_programme.progress import Progress, StateError
from tests.fault_programme.report import summary, table


class Toy:
    """A class of faults whose chunks run in this process and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: str = "") -> None:
        self.ran: list[str] = []
        self.failing = failing
        self.fault_class = FaultClass("toy", "A toy", "things", self.chunks, lambda **given: Outcome(), quick_share=1)
        monkeypatch.setattr(driver, "CLASSES", {"toy": self.fault_class})
        monkeypatch.setattr(driver, "run_in_child", self.run)
        monkeypatch.setattr(driver, "digest_of_sources", lambda: "these sources")

    def chunks(self, share: float) -> list[Chunk]:
        return ranges("part", part_of(100, share), 25)

    def run(self, fault_class: FaultClass, chunk: Chunk) -> Outcome:
        self.ran.append(chunk.name)
        failures = ["it broke"] if chunk.name == self.failing else []
        return Outcome(chunk.arguments["count"], failures, {"seen": chunk.arguments["count"]})


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(monkeypatch)


def run_driver(folder: Path, *words: str) -> int:
    return driver.main(["--folder", str(folder), "--jobs", "1", *words])


def report_in(folder: Path) -> Any:
    return json.loads((folder / "faults.json").read_text())


def test_everything_is_run_once_and_reported(toy, tmp_path, capsys):
    assert run_driver(tmp_path) == 0
    assert toy.ran == ["part 0", "part 25", "part 50", "part 75"]
    found = report_in(tmp_path)
    assert (found["complete"], found["cases"], found["failures"]) == (True, 100, 0)
    assert found["classes"]["toy"]["figures"] == {"seen": 100}
    row = (tmp_path / "faults.md").read_text().splitlines()[-1]
    assert row.startswith("| toy | A toy | 1 | 100 things | 0 | ")
    assert row in capsys.readouterr().out


def test_a_second_run_has_nothing_to_do(toy, tmp_path):
    run_driver(tmp_path)
    toy.ran.clear()
    assert run_driver(tmp_path) == 0
    assert toy.ran == []


def test_a_run_that_was_stopped_goes_on_where_it_was(toy, tmp_path, monkeypatch):
    def interrupted(fault_class: FaultClass, chunk: Chunk) -> Outcome:
        if len(toy.ran) == 2:
            raise KeyboardInterrupt
        return toy.run(fault_class, chunk)

    monkeypatch.setattr(driver, "run_in_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_driver(tmp_path)
    found = report_in(tmp_path)
    assert (found["complete"], found["classes"]["toy"]["chunks_run"]) == (False, 2)
    monkeypatch.setattr(driver, "run_in_child", toy.run)
    assert run_driver(tmp_path) == 0
    assert toy.ran == ["part 0", "part 25", "part 50", "part 75"]


def test_no_chunk_is_started_after_the_time_is_over(toy, tmp_path, capsys):
    assert run_driver(tmp_path, "--minutes", "0") == 1
    assert toy.ran == []
    assert "the same command goes on from here" in capsys.readouterr().out
    assert "(4 of 4 chunks not run)" in (tmp_path / "faults.md").read_text()


def test_a_chunk_that_failed_fails_the_run_and_is_run_again(tmp_path, monkeypatch, capsys):
    toy = Toy(monkeypatch, failing="part 25")
    assert run_driver(tmp_path) == 1
    assert "it broke" in capsys.readouterr().out
    assert report_in(tmp_path)["classes"]["toy"]["failures"] == ["it broke"]
    toy.ran.clear()
    toy.failing = ""
    assert run_driver(tmp_path) == 0
    assert toy.ran == ["part 25"]


def test_results_of_other_sources_do_not_count(toy, tmp_path, monkeypatch):
    run_driver(tmp_path)
    monkeypatch.setattr(driver, "digest_of_sources", lambda: "changed sources")
    toy.ran.clear()
    assert run_driver(tmp_path) == 0
    assert len(toy.ran) == 4


def test_another_share_of_a_class_is_refused_until_it_is_forgotten(toy, tmp_path, capsys):
    assert run_driver(tmp_path, "--share", "0.5") == 0
    assert toy.ran == ["part 0", "part 25"]
    assert run_driver(tmp_path) == 2
    assert "toy was begun with --share 0.5, not 1; go on with --share 0.5 or start over" in capsys.readouterr().err
    assert run_driver(tmp_path, "--fresh") == 0
    assert len(toy.ran) == 6


@pytest.mark.parametrize("text", ["", "[]", '{"shares": {}}', '{"shares": {}, "results": {"toy": {"part 0": {}}}}'])
def test_a_state_file_that_cannot_be_read_is_an_error_that_says_what_to_do(toy, tmp_path, text, capsys):
    (tmp_path / "state.json").write_text(text)
    assert run_driver(tmp_path) == 2
    assert "start over with --fresh" in capsys.readouterr().err
    assert toy.ran == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--share", "0"], "expected a number above 0"),
        (["--share", "2"], "expected a number above 0"),
        (["--jobs", "0"], "expected at least 1"),
        (["--only", "unknown"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_refused(toy, tmp_path, words, problem, capsys):
    with pytest.raises(SystemExit) as left:
        run_driver(tmp_path, *words)
    assert left.value.code == 2
    assert problem in capsys.readouterr().err


def test_only_some_classes_are_run_and_the_report_has_all(toy, tmp_path, monkeypatch):
    other = FaultClass("other", "Another", "things", toy.chunks, toy.fault_class.run, quick_share=1)
    monkeypatch.setattr(driver, "CLASSES", {"toy": toy.fault_class, "other": other})
    assert run_driver(tmp_path, "--only", "other") == 0
    assert len(toy.ran) == 4
    found = report_in(tmp_path)
    assert (found["complete"], found["classes"]["toy"]["chunks_run"]) == (False, 0)


def test_a_second_run_in_the_same_folder_is_refused(toy, tmp_path, monkeypatch, capsys):
    codes: list[int] = []

    def run_again(fault_class: FaultClass, chunk: Chunk) -> Outcome:
        codes.append(run_driver(tmp_path))
        return Outcome()

    monkeypatch.setattr(driver, "run_in_child", run_again)
    assert run_driver(tmp_path) == 0
    assert set(codes) == {2}
    assert "another run is using" in capsys.readouterr().err


def test_chunks_that_are_being_run_can_be_ended():
    with ThreadPoolExecutor(1) as pool:
        walk = Chunk("a long one", {"backend": "trio", "first": 0, "count": 1_000_000})
        future = pool.submit(run_in_child, CLASSES["lifecycle"], walk)
        while not launch._running:  # the thread starts it
            pass
        kill_running()
        [problem] = future.result().failures
    assert problem == "a long one: ended with code -9: "
    assert not launch._running


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the time of processes is not known here")
@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_chunk_that_hangs_or_never_ends_is_ended(is_stopped):
    """By its own use of the processor: how long a busy machine takes for it does not matter."""
    with ThreadPoolExecutor(1) as pool:
        walk = Chunk("a long one", {"backend": "trio", "first": 0, "count": 1_000_000})
        future = pool.submit(run_in_child, CLASSES["lifecycle"], walk, seconds=2.0)
        while is_stopped and not launch._running:  # the thread starts it
            pass
        for process in list(launch._running) if is_stopped else ():
            os.kill(process, signal.SIGSTOP)
        assert future.result().failures == ["a long one: hangs, or has run for 2 s"]
    assert not launch._running


def test_the_state_is_on_disk_before_the_next_chunk(toy, tmp_path):
    progress = Progress(tmp_path, "these sources")
    progress.begin("toy", 1.0)
    progress.note("toy", "part 0", Outcome(25), 1.0)
    again = Progress(tmp_path, "these sources")
    assert again.is_done("toy", "part 0")
    assert not again.is_done("toy", "part 25")
    with pytest.raises(StateError, match=r"begun with --share 1, not 0\.1"):
        again.begin("toy", 0.1)
    assert "(3 of 4 chunks not run)" in table(summary({"toy": toy.fault_class}, again))


def test_failures_beyond_the_limit_are_counted():
    outcome = Outcome()
    for number in range(MOST_FAILURES + 3):
        outcome.fail(str(number))
    assert len(outcome.failures) == MOST_FAILURES
    assert outcome.figures == {"failures not listed": 3}


def test_a_chunk_that_breaks_off_is_a_failure_with_its_output():
    broken = FaultClass("no such class", "", "", lambda share: [], lambda **given: Outcome(), quick_share=1)
    [problem] = run_in_child(broken, Chunk("part")).failures
    assert problem.startswith("part: ended with code 1: ")
    assert "KeyError" in problem


def test_chunks_of_every_class_have_unique_names_and_arguments_that_are_json():
    for share in (1.0, 0.01):
        for each in CLASSES.values():
            chunks = each.chunks(share)
            assert len({chunk.name for chunk in chunks}) == len(chunks) > 0, each.name
            assert all(json.loads(json.dumps(chunk.arguments)) == chunk.arguments for chunk in chunks), each.name


def test_the_whole_programme_has_the_promised_size():
    assert sum(chunk.arguments["count"] for chunk in CLASSES["kills"].chunks(1.0)) >= 1_000
    assert sum(chunk.arguments["count"] for chunk in CLASSES["lifecycle"].chunks(1.0)) * 40 == 1_000_000
    assert sum(chunk.arguments["count"] for chunk in CLASSES["same-seed"].chunks(1.0)) == 2 * 1_000
    assert {chunk.arguments["moments"] for chunk in CLASSES["signals"].chunks(1.0)} == {25}
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_matches_the_sources_exactly_once(bug, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "shutil.copytree", lambda source, target, **options: (target / bug.file).parent.mkdir(parents=True)
    )
    planted_bugs.plant(tmp_path, bug.file, bug.old, bug.new)
    changed = (tmp_path / "amplifier" / bug.file).read_text()
    compile(changed, bug.file, "exec")
    assert bug.new in changed


def test_a_bug_that_matches_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0 times in events\.py; expected once"):
        planted_bugs.plant(tmp_path, "events.py", "no such text", "")
