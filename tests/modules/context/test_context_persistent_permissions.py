"""A conversation's folder is for its owner: other users' rights are taken away, other users' folders are refused."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

from amplifier.store import Conversation, UnsafeFolderError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def use(folder: Path) -> Conversation:
    """A conversation in this folder, which was empty when it was opened, and is closed again."""
    conversation = Conversation(folder, "s")
    assert conversation.open() == []
    conversation.close()
    return conversation


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_open_folder_is_closed_with_warning(mode, tmp_path, caplog):
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level("WARNING"):
        use(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert f"{folder} was open to other users (mode {mode:04o})" in caplog.text


@pytest.mark.parametrize(("mode", "after"), [(0o777, 0o755), (0o775, 0o755), (0o755, 0o755)])
def test_sessions_folder_becomes_writable_by_owner_only(mode, after, tmp_path, caplog):
    root = tmp_path / "sessions"
    root.mkdir()
    root.chmod(mode)
    with caplog.at_level("WARNING"):
        use(root / "s")
    assert stat.S_IMODE(root.stat().st_mode) == after
    assert (f"{root} was open to other users (mode {mode:04o})" in caplog.text) == (mode != after)


def test_readable_file_is_closed_with_warning(tmp_path, caplog):
    use(tmp_path / "s")
    (tmp_path / "store.db").chmod(0o644)
    with caplog.at_level("WARNING"):
        use(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o600
    assert "store.db was open to other users (mode 0644)" in caplog.text


def test_private_folder_causes_no_warning(tmp_path, caplog):
    use(tmp_path / "s")
    use(tmp_path / "s")
    assert caplog.text == ""


def test_folder_replaceable_by_others_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(
        UnsafeFolderError, match=rf"every user may rename .* \(mode 0777\); .*chmod o-w {tmp_path}"
    ):
        Conversation(tmp_path / "sessions" / "s", "s").open()


def test_folder_in_sticky_directory_is_accepted(tmp_path):
    tmp_path.chmod(0o1777)
    use(tmp_path / "sessions" / "s")


@as_root
@pytest.mark.parametrize("name", ["s", "s/lock", "store.db"])
def test_foreign_owner_is_refused(name, tmp_path):
    log = use(tmp_path / "s")
    os.chown(tmp_path / name, 12345, -1)
    before = _descriptors()
    with pytest.raises(
        UnsafeFolderError,
        match=rf"{tmp_path / name}: it belongs to the user with id 12345, not to 0",
    ):
        log.open()
    assert not log.is_open
    assert _descriptors() == before


def test_error_can_be_pickled(tmp_path):
    error = UnsafeFolderError(tmp_path, "it is wrong", "chmod")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.fix) == (str(error), "chmod")


def _descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
