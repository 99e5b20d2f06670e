from __future__ import annotations

import sys
import threading

import pytest

from amplifier.loading.importing import HeldRoots, held_roots


@pytest.fixture(autouse=True)
def _path_restored(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_entry_is_appended_last():
    roots = HeldRoots()
    assert roots.add("/some/place", None)
    assert sys.path[-1] == "/some/place"
    assert sys.path.count("/some/place") == 1
    roots.clear()
    assert "/some/place" not in sys.path


def test_earlier_entry_is_neither_held_nor_removed():
    sys.path.append("/some/place")
    assert not HeldRoots().add("/some/place", None)
    assert sys.path.count("/some/place") == 1
    assert "/some/place" not in held_roots()


def test_equal_entry_in_front_survives():
    roots = HeldRoots()
    roots.add("/some/place", None)
    sys.path.insert(0, "/some/place")
    roots.clear()
    assert sys.path[0] == "/some/place"
    assert sys.path.count("/some/place") == 1


def test_removed_entry_returns_with_next_holder():
    one, other = HeldRoots(), HeldRoots()
    one.add("/some/place", None)
    sys.path.remove("/some/place")
    other.add("/some/place", None)
    assert "/some/place" in sys.path
    one.clear()
    other.clear()
    assert "/some/place" not in sys.path


def test_release_forgets_finder_of_entry():
    roots = HeldRoots()
    roots.add("/some/place", None)
    sys.path_importer_cache["/some/place"] = None
    roots.clear()
    assert "/some/place" not in sys.path_importer_cache


def test_threads_do_not_lose_holder():
    started = threading.Barrier(8)

    def work():
        roots = HeldRoots()
        started.wait()
        for _ in range(300):
            assert roots.add("/some/place", None)
            assert "/some/place" in sys.path
            roots.discard("/some/place", None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "/some/place" not in sys.path
    assert "/some/place" not in held_roots()
