"""Every call to the system fails in turn, or is the last one: nothing acknowledged is lost, nothing is invented."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from amplifier.modules.context_persistent import PersistentContext, _message_log
from amplifier.modules.context_persistent._options import read_persistent_options
from tests._support.child_process import run_child
from tests.modules.test_context_persistent import stored

COUNTED = ("open", "write", "fsync", "ftruncate", "rename", "unlink")


class Dead(BaseException):
    """The process is gone: nothing it still meant to do happens."""


class System:
    """Replaces `os` in the log, counts what is asked of the disk and lets one call go wrong.

    Args:
        at: Which call goes wrong, counted from 1; none if 0.
        how: ``"refuse"``: an error once. ``"refuse for ever"``: from there on. ``"half"``: a write stores half, then an
            error. ``"short"``: a write stores half and returns the number. ``"die"``: half of it happens and nothing after it.
        error: Which error.
    """

    def __init__(self, at: int = 0, how: str = "refuse", error: int = errno.EIO) -> None:
        self.at, self.how, self.error = at, how, error
        self.calls: list[str] = []
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counting(name, real) if name in COUNTED else real

    def close(self, fd: int) -> None:
        os.close(fd)  # of a dead process the kernel closes what it had open

    def _counting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Dead
            self.calls.append(name)
            if len(self.calls) == self.at or (len(self.calls) > self.at > 0 and self.how == "refuse for ever"):
                return self._go_wrong(name, real, args)
            return real(*args, **kwargs)

        return call

    def _go_wrong(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        written = None
        if name == "write" and self.how in ("half", "short", "die"):
            written = real(args[0], bytes(args[1])[: max(1, len(args[1]) // 2)])
        if self.how == "short" and written is not None:
            return written
        if self.how == "die":
            self.dead = True
            raise Dead
        raise OSError(self.error, os.strerror(self.error))


STEPS: list[tuple[str, Any]] = [
    ("add", {"role": "user", "content": "one"}),
    ("add", {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "look"}]}),
    ("set", [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]),
    ("add", {"role": "user", "content": "three"}),
    ("clear", None),
    ("add", {"role": "user", "content": "four"}),
]


def after(step: tuple[str, Any], before: list[Any]) -> list[Any]:
    return {"add": [*before, step[1]], "set": step[1], "clear": []}[step[0]]


async def take(context: PersistentContext, step: tuple[str, Any]) -> None:
    match step[0]:
        case "add":
            await context.add_message(step[1])
        case "set":
            await context.set_messages(step[1])
        case "clear":
            await context.clear()


def make(root: Path) -> PersistentContext:
    return PersistentContext(read_persistent_options("s", {"path": root, "resume_policy": "replace"}))


async def calls_in_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many calls there are when nothing goes wrong."""
    system = System()
    monkeypatch.setattr(_message_log, "os", system)
    context = make(root / "undisturbed")
    await context.open()
    for step in STEPS:
        await take(context, step)
    await context.close()
    return len(system.calls)


@attrs.define
class Trial:
    """A context whose system goes wrong at one call; knows what must be stored."""

    root: Path
    context: PersistentContext = attrs.field(init=False)
    expected: list[Any] = attrs.field(factory=list)
    doing: list[Any] = attrs.field(factory=list)
    errors: list[OSError] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.context = make(self.root)

    async def open(self) -> bool:
        try:
            await self.context.open()
        except OSError as error:
            self.errors.append(error)
            return False
        return True

    async def take(self, step: tuple[str, Any]) -> None:
        generation = self.context._log.generation
        self.doing = after(step, self.expected)
        try:
            await take(self.context, step)
        except OSError as error:
            self.errors.append(error)
            if self.context._log.generation == generation:
                return  # else the new messages are in place, only the folder could not be synced
        self.expected = self.doing


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("how", ["refuse", "refuse for ever", "half", "short"])
async def test_memory_shows_what_the_file_holds_whichever_call_fails(how, error, tmp_path, monkeypatch):
    count = await calls_in_all(tmp_path, monkeypatch)
    assert count > 20
    for at in range(1, count + 1):
        monkeypatch.setattr(_message_log, "os", System(at, how, error))
        trial = Trial(tmp_path / str(at))
        if await trial.open():
            for step in STEPS:
                await trial.take(step)
                assert await trial.context.get_messages() == trial.expected, f"call {at}, step {step}"
            await trial.context.close()
        assert not trial.context._log.is_open
        assert {caught.errno for caught in trial.errors} <= {error}
        monkeypatch.setattr(_message_log, "os", os)
        found = stored(trial.root)
        if how == "refuse for ever":  # nothing could be taken back any more: a refused record may be in the file
            assert found[: len(trial.expected)] == trial.expected
            assert len(found) <= len(trial.expected) + 1
        else:
            assert len(trial.errors) == 1 or how == "short"
            assert found == trial.expected, f"call {at}"


async def test_a_process_that_dies_at_any_call_has_stored_what_it_acknowledged(tmp_path, monkeypatch):
    count = await calls_in_all(tmp_path, monkeypatch)
    for at in range(1, count + 1):
        system = System(at, "die")
        monkeypatch.setattr(_message_log, "os", system)
        trial = Trial(tmp_path / str(at))
        with suppress(Dead, BaseExceptionGroup):
            await trial.open()
            for step in STEPS:
                await trial.take(step)
        trial.context._log.close()
        assert system.dead
        monkeypatch.setattr(_message_log, "os", os)
        assert stored(trial.root) in (trial.expected, trial.doing), f"died at call {at}"
        assert "messages.log.new" not in os.listdir(trial.root / "s")


async def test_the_disk_has_it_before_it_is_acknowledged(tmp_path, monkeypatch):
    system = System()
    monkeypatch.setattr(_message_log, "os", system)
    context = make(tmp_path)
    await context.open()
    assert system.calls[-5:] == ["open", "write", "fsync", "rename", "fsync"]
    del system.calls[:]
    await context.add_message(STEPS[0][1])
    assert system.calls == ["write", "fsync"]
    del system.calls[:]
    await context.set_messages(STEPS[2][1])
    assert system.calls == ["open", "write", "fsync", "rename", "fsync"]
    await context.close()


async def test_a_full_device_refuses_and_the_conversation_goes_on_when_there_is_room(tmp_path, monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)

    class Full(System):
        def write(self, fd: int, data: Any) -> int:
            return os.write(full, data)

    context = make(tmp_path)
    await context.open()
    await context.add_message(STEPS[0][1])
    monkeypatch.setattr(_message_log, "os", Full())
    for step in (STEPS[1], ("clear", None)):
        with pytest.raises(OSError, match=r"No space left on device.* context-persistent .*free some space") as caught:
            await take(context, step)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "s" / "messages.log"))
    other = make(tmp_path / "other")
    with pytest.raises(OSError, match=r"No space left on device.* context-persistent ") as caught:
        await other.open()
    assert caught.value.filename == str(tmp_path / "other" / "s" / "messages.log")
    monkeypatch.setattr(_message_log, "os", os)
    await context.add_message(STEPS[3][1])
    await context.close()
    os.close(full)
    assert stored(tmp_path) == [STEPS[0][1], STEPS[3][1]]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_limit_on_the_size_of_files_loses_nothing_acknowledged(backend, tmp_path):
    ended = run_child(
        """
        import json, resource
        from amplifier.modules.context_persistent import PersistentContext
        from amplifier.modules.context_persistent._options import read_persistent_options

        async def main():
            context = PersistentContext(read_persistent_options("s", {"path": sys.argv[2]}))
            await context.open()
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
            refused = 0
            for number in range(60):
                if number == 50:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                try:
                    await context.add_message({"role": "user", "content": f"{number} " + "x" * 100})
                except OSError as error:
                    assert error.errno == 27, error  # EFBIG
                    refused += 1
            print_line(refused)
            print_line(json.dumps(await context.get_messages()))
            await context.close()

        anyio.run(main, backend=backend)
        """,
        backend,
        str(tmp_path),
    )
    assert ended.code == 0, ended.errors
    refused, messages = int(ended.lines[0]), json.loads(ended.lines[1])
    assert 20 < refused < 50
    assert len(messages) == 60 - refused
    assert stored(tmp_path) == messages
