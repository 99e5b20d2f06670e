"""How chunks of the fault programme are run, kept and reported, and that its bugs match the sources."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests._support.processes import running_processes
from tests.fault_programme import launch
from tests.fault_programme.catalogue import CLASSES
from tests.fault_programme.classes import planted_bugs
from tests.fault_programme.classes.bug_list import BUGS
from tests.fault_programme.conftest import table
from tests.fault_programme.launch import run_in_child
from tests.fault_programme.parts import MOST_FAILURES, Chunk, FaultClass, Outcome


def test_passed_chunk_of_same_sources_is_skipped(monkeypatch, tmp_path):
    ran: list[str] = []
    outcomes = {"sound": Outcome(25, [], {"seen": 25}), "broken": Outcome(1, ["it broke"])}

    def run(fault_class: FaultClass, chunk: Chunk) -> Outcome:
        ran.append(chunk.name)
        return outcomes[chunk.name]

    monkeypatch.setattr(launch, "run_in_child", run)
    toy = FaultClass(
        "toy", "A toy", "things", lambda share: [], lambda **given: Outcome(), quick_share=1
    )
    for sources in ("these", "these", "other"):
        monkeypatch.setattr(launch, "digest_of_sources", lambda sources=sources: sources)
        found = {
            name: launch.outcome_of(toy, Chunk(name, {"name": name}), tmp_path) for name in outcomes
        }
        assert found == outcomes
    assert ran == ["sound", "broken", "broken", "sound", "broken"]
    assert [file.suffix for file in tmp_path.rglob("*.*")] == [".json", ".json"]


def test_chunk_outcomes_add_up_by_class():
    found = {"load": [Outcome(25, [], {"seen": 2}), Outcome(1000, ["it broke"], {"seen": 3.5})]}
    row = table(found).splitlines()[-1]
    assert row.startswith("| load | ")
    assert row.endswith("| 2 | 1,025 emits, handlers, calls and sessions | 1 | seen: 5.5 |")


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the time of processes is not known here"
)
@pytest.mark.parametrize("is_stopped", [True, False])
def test_hanging_or_endless_chunk_is_ended(is_stopped):
    """By its own use of the processor: how long a busy machine takes for it does not matter."""
    with ThreadPoolExecutor(1) as pool:
        count = 1_000_000 + is_stopped  # by which the process is found
        walk = Chunk("a long one", {"backend": "trio", "first": 0, "count": count})
        future = pool.submit(run_in_child, CLASSES["lifecycle"], walk, seconds=2.0)
        while is_stopped and not (
            found := running_processes(f'"count": {count}')
        ):  # the thread starts it
            pass
        if is_stopped:
            os.kill(int(found[0].split()[0]), signal.SIGSTOP)
        assert future.result().failures == ["a long one: hangs, or has run for 2 s"]
    assert running_processes(f'"count": {count}') == []


def test_failures_beyond_limit_are_counted():
    outcome = Outcome()
    for number in range(MOST_FAILURES + 3):
        outcome.fail(str(number))
    assert len(outcome.failures) == MOST_FAILURES
    assert outcome.figures == {"failures not listed": 3}


def test_crashed_chunk_is_failure_with_output():
    broken = FaultClass(
        "no such class", "", "", lambda share: [], lambda **given: Outcome(), quick_share=1
    )
    [problem] = run_in_child(broken, Chunk("part")).failures
    assert problem.startswith("part: ended with code 1: ")
    assert "KeyError" in problem


def test_chunk_names_are_unique_with_json_arguments():
    for share in (1.0, 0.01):
        for each in CLASSES.values():
            chunks = each.chunks(share)
            assert len({chunk.name for chunk in chunks}) == len(chunks) > 0, each.name
            assert all(
                json.loads(json.dumps(chunk.arguments)) == chunk.arguments for chunk in chunks
            ), each.name


def test_whole_programme_has_promised_size():
    assert sum(chunk.arguments["count"] for chunk in CLASSES["kills"].chunks(1.0)) >= 1_000
    assert (
        sum(chunk.arguments["count"] for chunk in CLASSES["lifecycle"].chunks(1.0)) * 40
        == 1_000_000
    )
    assert sum(chunk.arguments["count"] for chunk in CLASSES["same-seed"].chunks(1.0)) == 2 * 1_000
    assert {chunk.arguments["moments"] for chunk in CLASSES["signals"].chunks(1.0)} == {25}
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_matches_sources_once(bug, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "shutil.copytree",
        lambda source, target, **options: (target / bug.file).parent.mkdir(parents=True),
    )
    planted_bugs.plant(tmp_path, bug.file, bug.old, bug.new)
    changed = (tmp_path / "amplifier" / bug.file).read_text()
    compile(changed, bug.file, "exec")
    assert bug.new in changed


def test_unmatched_bug_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"0 times in errors\.py; expected once"):
        planted_bugs.plant(tmp_path, "errors.py", "no such text", "")
