from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import pytest

from amplifier.loading import ModuleLoader, discovery
from amplifier.loading.discovery import effective_search_paths, find_directory
from amplifier.loading.discovery import installed_claims as entry_points
from tests.loading._forge import distribution, package, root, run_python, write


def claims(module_id):
    return [f"{claim.import_name}:{claim.attribute}" for claim in entry_points().get(module_id, ())]


def settle(*directories):
    """Make directories look as if nothing had happened to them for an hour."""
    hour_ago = time.time() - 3600
    for directory in directories:
        os.utime(directory, (hour_ago, hour_ago))


# ── entry points ─────────────────────────────────────────────────────────────────────────────────


def test_installed_distribution_is_found(site):
    metadata = distribution(
        site, "acme_tools", {"tool-acme": "acme.tools:mount", "tool-bare": "acme"}, version="2.1"
    )
    (claim,) = entry_points()["tool-acme"]
    assert str(claim) == "entry point tool-acme of acme_tools 2.1"
    assert claim.metadata == str(metadata)
    assert claims("tool-acme") == ["acme.tools:mount"]
    assert claims("tool-bare") == ["acme:"]
    assert "ignored" not in entry_points()
    assert "a" not in entry_points()


@pytest.mark.parametrize(
    "is_quiet", [False, True], ids=["in a directory that changes", "in one that had been quiet"]
)
def test_distribution_changes_are_noticed_at_once(site, is_quiet):
    if is_quiet:
        settle(site)
    assert claims("tool-acme") == []
    metadata = distribution(site, "acme", {"tool-acme": "acme:mount"})
    assert claims("tool-acme") == ["acme:mount"]
    if is_quiet:
        settle(site)
        assert claims("tool-acme") == ["acme:mount"]
    shutil.rmtree(metadata)
    assert claims("tool-acme") == []


def test_only_changed_directory_is_read_again(site, tmp_path, monkeypatch):
    quiet = tmp_path / "quiet"
    distribution(quiet, "calm", {"tool-calm": "calm:mount"})
    settle(quiet)
    monkeypatch.setattr(sys, "path", [*sys.path, str(quiet)])
    entry_points()
    read: list[str] = []
    read_directory = discovery._read_directory

    def noted(entry):
        read.append(entry)
        return read_directory(entry)

    monkeypatch.setattr(discovery, "_read_directory", noted)
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    assert (claims("tool-acme"), claims("tool-calm")) == (["acme:mount"], ["calm:mount"])
    assert str(site) in read
    assert str(quiet) not in read


def test_path_changes_are_noticed(tmp_path, monkeypatch):
    distribution(tmp_path, "acme", {"tool-acme": "acme:mount"})
    settle(tmp_path)
    assert claims("tool-acme") == []
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert claims("tool-acme") == ["acme:mount"]
    monkeypatch.undo()
    assert claims("tool-acme") == []


def test_unchanged_path_is_read_once(tmp_path, monkeypatch):
    quiet = tmp_path / "quiet"
    distribution(quiet, "acme", {"tool-acme": "acme:mount"})
    settle(quiet)
    monkeypatch.setattr(sys, "path", [str(quiet), str(tmp_path / "absent")])
    assert entry_points() is entry_points()


def test_just_changed_directory_is_read_again(tmp_path, monkeypatch):
    distribution(tmp_path, "acme", {"tool-acme": "acme:mount"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    now = time.time_ns()
    os.utime(tmp_path, ns=(now, now))
    assert claims("tool-acme") == ["acme:mount"]
    distribution(tmp_path, "bert", {"tool-bert": "bert:mount"})
    os.utime(tmp_path, ns=(now, now))  # as a file system with a coarse clock would show it
    assert claims("tool-bert") == ["bert:mount"]


def test_working_directory_may_change(tmp_path, monkeypatch):
    distribution(tmp_path / "a", "acme", {"tool-acme": "acme:mount"})
    (tmp_path / "b").mkdir()
    settle(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(sys, "path", [""])
    monkeypatch.chdir(tmp_path / "a")
    assert claims("tool-acme") == ["acme:mount"]
    monkeypatch.chdir(tmp_path / "b")
    assert claims("tool-acme") == []


def test_one_distribution_found_twice_counts_once(site, tmp_path, monkeypatch):
    distribution(site, "acme_tools", {"tool-x": "acme:mount"})
    checkout = tmp_path / "checkout"
    write(
        checkout / "Acme.Tools.egg-info" / "entry_points.txt",
        "[amplifier.modules]\ntool-x = other:mount\n",
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(checkout)])
    assert claims("tool-x") == ["acme:mount"]


def test_held_roots_are_not_searched(tmp_path, held):
    distribution(tmp_path, "acme", {"tool-acme": "acme:mount"})
    assert held.add(str(tmp_path), None)
    assert claims("tool-acme") == []


def test_damaged_metadata_is_skipped(site, caplog):
    distribution(
        site,
        "acme",
        {"tool-acme": "acme:mount", "tool-bad": "not a reference", "tool-extra": "x:y [extra]"},
    )
    (site / "broken-1.dist-info").mkdir()
    (site / "broken-1.dist-info" / "entry_points.txt").write_bytes(
        b"[amplifier.modules]\n\xff = x:y\n"
    )
    write(site / "file-1.0.dist-info", "not a directory")
    assert claims("tool-acme") == ["acme:mount"]
    assert claims("tool-extra") == ["x:y"]
    assert claims("tool-bad") == []
    assert "is not a reference to an object" in caplog.text


def test_strange_path_entries_are_left_out(monkeypatch, site):
    distribution(site, "acme", {"tool-acme": "acme:mount"})
    monkeypatch.setattr(sys, "path", [str(site), "/absent", "nul\0byte", site, None])
    assert claims("tool-acme") == ["acme:mount"]


def test_metadata_library_stays_unimported(tmp_path):
    distribution(tmp_path, "acme", {"tool-acme": "acme:mount"})
    printed = run_python(
        """
        import sys
        from amplifier.loading.discovery import installed_claims as entry_points
        print("tool-acme" in entry_points(), "importlib.metadata" in sys.modules)
        """,
        tmp_path,
    )
    assert printed == "True False"


# ── search paths ─────────────────────────────────────────────────────────────────────────────────


def test_environment_search_paths_are_fallback(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPLIFIER_MODULES", f"/a{os.pathsep}{os.pathsep}/b")
    assert [str(path) for path in effective_search_paths(())] == ["/a", "/b"]
    assert effective_search_paths([str(tmp_path)]) == [tmp_path]
    monkeypatch.delenv("AMPLIFIER_MODULES")
    assert effective_search_paths([]) == []


def test_first_search_path_wins(tmp_path):
    second = root(tmp_path / "2", "tool-x")
    paths = [tmp_path / "1", tmp_path / "2", tmp_path / "3"]
    root(tmp_path / "3", "tool-x")
    assert find_directory("tool-x", paths) == second
    first = package(tmp_path / "1", "amplifier_module_tool_x")
    assert find_directory("tool-x", paths) == first
    assert find_directory("tool-y", paths) is None


@pytest.mark.parametrize(
    ("directory", "name", "version"),
    [
        ("acme-1.0.dist-info", "acme", "1.0"),
        ("acme_tools-2.0rc1+local.dist-info", "acme_tools", "2.0rc1+local"),
        ("acme-tools-2.0.dist-info", "acme-tools", "2.0"),
        ("acme.egg-info", "acme", ""),
        ("acme-1.0-py3.11.egg-info", "acme", "1.0"),
    ],
)
def test_name_and_version_from_metadata_directory(site, directory, name, version):
    write(site / directory / "entry_points.txt", "[amplifier.modules]\ntool-x = acme:mount\n")
    (claim,) = entry_points()["tool-x"]
    assert (claim.distribution, claim.version) == (name, version)


# ── the listing of one opening ───────────────────────────────────────────────────────────────────


def test_listing_caches_known_ids_only(site, monkeypatch):
    distribution(site, "acme", {"tool-acme": "acme:mount", "tool-other": "acme:other"})
    looks = []

    def counted():
        looks.append(1)
        return entry_points()

    monkeypatch.setattr("amplifier.loading.loader.installed_claims", counted)
    loader = ModuleLoader()
    listing: dict[str, Any] = {}

    def attribute(module_id):
        found = loader.locate(module_id, listing=listing)
        return found and found.attribute

    assert attribute("tool-acme") == "mount"
    assert attribute("tool-other") == "other"
    assert len(looks) == 1
    assert attribute("tool-late") is None
    distribution(site, "late", {"tool-late": "late:mount"})
    assert attribute("tool-late") == "mount"
