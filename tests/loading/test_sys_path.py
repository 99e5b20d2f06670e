from __future__ import annotations

import sys
import threading

import pytest

from amplifier.loading import _sys_path


@pytest.fixture(autouse=True)
def _path_restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_an_entry_goes_behind_everything_else():
    assert _sys_path.acquire("/some/place")
    assert sys.path[-1] == "/some/place"
    assert sys.path.count("/some/place") == 1
    _sys_path.release("/some/place")
    assert "/some/place" not in sys.path


def test_an_entry_stays_until_its_last_holder_lets_go():
    assert _sys_path.acquire("/some/place")
    assert _sys_path.acquire("/some/place")
    assert sys.path.count("/some/place") == 1
    _sys_path.release("/some/place")
    assert "/some/place" in sys.path
    assert "/some/place" in _sys_path.held_roots()
    _sys_path.release("/some/place")
    assert "/some/place" not in sys.path
    assert "/some/place" not in _sys_path.held_roots()


def test_an_entry_that_was_there_before_is_neither_counted_nor_removed():
    sys.path.append("/some/place")
    assert not _sys_path.acquire("/some/place")
    assert sys.path.count("/some/place") == 1
    assert "/some/place" not in _sys_path.held_roots()


def test_an_equal_entry_in_front_survives():
    _sys_path.acquire("/some/place")
    sys.path.insert(0, "/some/place")
    _sys_path.release("/some/place")
    assert sys.path[0] == "/some/place"
    assert sys.path.count("/some/place") == 1


def test_an_entry_that_was_removed_comes_back_with_the_next_holder():
    _sys_path.acquire("/some/place")
    sys.path.remove("/some/place")
    _sys_path.acquire("/some/place")
    assert "/some/place" in sys.path
    _sys_path.release("/some/place")
    _sys_path.release("/some/place")
    assert "/some/place" not in sys.path


def test_releasing_forgets_the_finder_of_the_entry():
    _sys_path.acquire("/some/place")
    sys.path_importer_cache["/some/place"] = None
    _sys_path.release("/some/place")
    assert "/some/place" not in sys.path_importer_cache


def test_threads_do_not_lose_count():
    started = threading.Barrier(8)

    def work():
        started.wait()
        for _ in range(300):
            assert _sys_path.acquire("/some/place")
            assert "/some/place" in sys.path
            _sys_path.release("/some/place")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "/some/place" not in sys.path
    assert "/some/place" not in _sys_path.held_roots()
