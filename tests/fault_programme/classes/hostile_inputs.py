"""Hostile and mutated inputs over everything that reads: only typed errors, in bounded time and memory.

Valid texts are mutated in two ways: their bytes (flipped, cut, repeated, inserted) and their JSON trees (nodes replaced by
hostile values, members dropped and renamed).
"""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed

from amplifier import ToolResult
from amplifier.cli.agent.plan_files import PlanFileError, read_plan_file
from amplifier.conformance.inputs.values import ODD_TEXTS, ODD_VALUES, sample_inputs
from amplifier.conformance.strategies import instances
from amplifier.errors import LLMError, ModelError, PlanError
from amplifier.models import from_dict, from_json, to_json
from amplifier.modules.context.persistent import JournalError, StepJournal
from amplifier.modules.tools import filesystem as tool_filesystem
from amplifier.modules.tools import search as tool_search
from amplifier.modules.tools import todo as tool_todo
from amplifier.plan import parse_plan
from amplifier.store import STORE_FILE, Conversation, StoreDamagedError, encode_message
from amplifier.testing import TestCoordinator
from amplifier.tracing import Trace
from tests.models.test_fields import model_classes
from tests.modules.providers.scripted_http_server import (
    END,
    EVENT_STREAM,
    ScriptedHttpServer,
    chunk,
)
from tests.modules.providers.services import SERVICES, ask, chunks_of, mounted
from tests.tracing._logs import model_call, tool_call

from ..parts import BACKENDS, Chunk, Outcome, part_of

INPUTS = {
    "models": 200_000,
    "plans": 60_000,
    "plan files": 40_000,
    "provider streams": 8_000,
    "event logs": 30_000,
    "stores": 3_000,
    "tool inputs": 4_000,
}
INPUTS_PER_CHUNK = 20_000
SECONDS = 5.0
"""Processor seconds that reading one input may take; all of them are smaller than 100 kB."""
MEGABYTES = 700
"""By which the peak memory of the process may grow over a chunk."""

HUGE: tuple[Any, ...] = ("\ud800", 10**400, float("nan"), float("inf"), "x" * 5_000, [[]] * 1_000)
WHOLE_PLAN: dict[str, Any] = {
    "session": {
        "orchestrator": {"module": "loop-basic", "config": {"max_iterations": 5}},
        "context": "context-simple",
        "strict": True,
        "deadlines": {"mount": 5, "hook": None},
        "injection_size_limit": 1000,
        "budget": {
            "tokens": 5,
            "cost": "0.1",
            "prices": {"m": {"input_per_million": 1, "output_per_million": 2}},
        },
    },
    "providers": [{"module": "provider-mock", "config": {"a": [1, {"b": None}]}, "source": "/x"}],
    "tools": ["tool-todo", {"module": "tool-bash"}],
    "hooks": [{"module": "hooks-x", "on_failure": "deny"}],
    "agents": {"helper": {"description": "x", "tools": []}},
}


# ── mutations ──


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to four changes of the bytes."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        size = chance.choice((1, 1, 2, 8, 40))
        match chance.randrange(6):
            case 0:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + size :]
            case 2:
                data = (
                    data[:at]
                    + data[at : at + size] * chance.choice((2, 3, 100))
                    + data[at + size :]
                )
            case 3:
                data = data[:at]
            case 4:
                data = data[:at] + chance.choice(ODD_TEXTS).encode() + data[at:]
            case _:
                other = chance.randrange(len(data) + 1)
                data = data[:at] + data[other : other + size] + data[at:]
    return data


def mutated_tree(value: Any, chance: random.Random) -> Any:
    """A copy with one to three nodes changed."""
    value = {"root": copy.deepcopy(value)}
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(list(_places(value)))
        match chance.randrange(8):
            case 0:
                del holder[key]
                value.setdefault("root", None)
            case 1 if isinstance(holder, dict) and holder is not value:
                holder[chance.choice((*ODD_TEXTS, "type", "extra", "module"))] = holder.pop(key)
            case 2:
                holder[key] = copy.deepcopy(chance.choice(HUGE))
            case 3:
                holder[key] = [copy.deepcopy(holder[key])] * chance.choice((0, 1, 2, 3))
            case 4:
                holder[key] = {chance.choice(("type", "text", "x")): copy.deepcopy(holder[key])}
            case _:
                holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return value["root"]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(member, dict | list):
            yield from _places(member)


# ── readers ──

Reader = Callable[[random.Random], None]


def _models(seed: int, folder: Path) -> Reader:
    samples = _samples(seed)

    def read(chance: random.Random) -> None:
        cls, text = chance.choice(samples)
        try:
            if chance.random() < 0.5:
                found = from_json(
                    cls, mutated_bytes(text.encode(), chance).decode(errors="surrogateescape")
                )
            else:
                found = from_dict(cls, mutated_tree(json.loads(text), chance))
            # What was accepted has a JSON form that reads as the same, or is refused as a whole.
            if to_json(from_json(cls, to_json(found))) != to_json(found):
                raise AssertionError(f"{found!r} changes on its way through JSON")
        except ModelError:
            pass

    return read


def _samples(seed: int) -> list[tuple[type[Any], str]]:
    """A few instances of every model class, as JSON."""
    samples: list[tuple[type[Any], str]] = []

    def collect_from(cls: type[Any]) -> None:
        @hypothesis_seed(seed)
        @settings(
            max_examples=8, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(instances(cls))
        def collect(instance: Any) -> None:
            with suppress(ModelError):
                samples.append((cls, to_json(instance)))

        collect()

    for cls in model_classes():
        collect_from(cls)
    return samples


def _plans(seed: int, folder: Path) -> Reader:
    def read(chance: random.Random) -> None:
        try:
            parse_plan(mutated_tree(WHOLE_PLAN, chance))
        except PlanError as exc:
            if not exc.problems:
                raise AssertionError("a PlanError without problems") from exc

    return read


def _plan_files(seed: int, folder: Path) -> Reader:
    import yaml

    texts = {
        ".json": json.dumps(WHOLE_PLAN, indent=1).encode(),
        ".yaml": yaml.safe_dump(WHOLE_PLAN).encode(),
    }
    texts[".toml"] = (
        b'[session]\norchestrator = "loop-basic"\ncontext = "context-simple"\n[[tools]]\nmodule = "tool-todo"\n'
    )

    def read(chance: random.Random) -> None:
        suffix = chance.choice(list(texts))
        file = folder / f"plan{suffix}"
        file.write_bytes(mutated_bytes(texts[suffix], chance))
        with suppress(PlanFileError, PlanError):
            parse_plan(read_plan_file(file))

    return read


def _mutated_events(whole: bytes, chance: random.Random) -> bytes:
    """The JSON of some events is changed; the stream around it stays valid."""
    lines = whole.split(b"\n")
    for place, line in enumerate(lines):
        if line.startswith(b"data: {") and chance.random() < 0.2:
            tree = mutated_tree(json.loads(line[6:]), chance)
            lines[place] = b"data: " + json.dumps(tree).encode(errors="replace")
    return b"\n".join(lines)


def _event_logs(seed: int, folder: Path) -> Reader:
    whole = b"".join([*model_call(0, 2), *tool_call(2, 1), *model_call(3, 1)])

    def read(chance: random.Random) -> None:
        if chance.random() < 0.5:
            data = mutated_bytes(whole, chance)
        else:
            lines = [
                json.dumps(mutated_tree(json.loads(line), chance)) for line in whole.splitlines()
            ]
            data = "\n".join(lines).encode(errors="replace")
        trace = Trace("s")
        trace.add_lines(data.splitlines(keepends=True))
        if trace.lines != sum(bool(line.strip()) for line in data.splitlines()):
            raise AssertionError("lines were lost")

    return read


_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first {\n}"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look"}]},
    {"role": "tool", "tool_call_id": "1", "content": "ü"},
    {"role": "assistant", "content": "done"},
]
_STEPS: list[dict[str, Any]] = [
    {"position": 1, "step": "answered", "call": ""},
    {"position": 1, "step": "finished", "call": "1", "result": {"success": True, "output": "x"}},
    {"position": 1, "step": "started", "call": "2"},
]


def _stores(seed: int, folder: Path) -> Reader:
    """Conversations and step journals: bytes that were changed, and records that are whole and hold something else."""
    whole = folder / "whole"
    conversation = Conversation(whole / "s", "s")
    conversation.open()
    conversation.append([encode_message(message)[0] for message in _MESSAGES], _STEPS)
    conversation.close()
    content = (whole / STORE_FILE).read_bytes()

    def read(chance: random.Random) -> None:
        root = folder / "image"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        if chance.random() < 0.5:
            (root / STORE_FILE).write_bytes(mutated_bytes(content, chance))
        else:
            database = sqlite3.connect(root / STORE_FILE, isolation_level=None)
            table, records = chance.choice([("messages", _MESSAGES), ("steps", _STEPS)])
            number = chance.randrange(len(records))
            text = (
                json.dumps(mutated_tree(records[number], chance)).encode(errors="replace").decode()
            )
            position = number if table == "messages" else 1
            which = (
                "position = ?" if table == "messages" else "position = 1 AND CAST(call AS TEXT) = ?"
            )
            key = number if table == "messages" else records[number]["call"]
            database.execute(
                f"UPDATE {table} SET body = ?, checksum = ? WHERE {which}",
                (text, zlib.crc32(text.encode(), position), key),
            )
            database.close()
        stored = Conversation(root / "s", "s")
        try:
            found = stored.open()
            context: Any = SimpleNamespace(_stored=stored)
            StepJournal(context).open(["1", "2"], 1)
        except (StoreDamagedError, JournalError):
            return
        finally:
            stored.close()
        if not all(isinstance(message, dict) for message in found):
            raise AssertionError(f"a record that is no message: {found!r}")

    return read


READERS: dict[str, Callable[[int, Path], Reader]] = {
    "models": _models,
    "plans": _plans,
    "plan files": _plan_files,
    "event logs": _event_logs,
    "stores": _stores,
}


# ── what needs an event loop ──


async def _read_streams(outcome: Outcome, first: int, count: int) -> None:
    """Providers read mutated answers that a server sends over HTTP."""
    server = ScriptedHttpServer()
    calls = [("c1", "look", '{"a": [1, "ü"]}'), ("c2", "look", "{}")]
    try:
        for turn, service in enumerate(SERVICES.values()):
            whole = b"".join(map(_payload, service.pieces(["one ", "zwö"], calls, ["hm"])))
            async with mounted(service, server) as opened:
                for number in range(first + turn, first + count, len(SERVICES)):
                    chance = random.Random(number)
                    data = (
                        mutated_bytes(whole, chance)
                        if chance.random() < 0.5
                        else _mutated_events(whole, chance)
                    )
                    server.answers([EVENT_STREAM, *([chunk(data)] if data else []), END])
                    outcome.cases += 1
                    try:
                        for piece in await chunks_of(opened.provider, ask()):
                            to_json(piece)
                    except LLMError:
                        pass
                    except Exception as exc:
                        outcome.fail(f"{service.name}, stream {number}: {exc!r:.300}")
    finally:
        server.close()


def _payload(piece: bytes) -> bytes:
    """What is in a piece of a chunked body."""
    return piece.partition(b"\r\n")[2][:-2]


async def _call_tools(outcome: Outcome, first: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file.txt").write_text("one\ntwo\n")
        coordinator = TestCoordinator()
        for module in (tool_filesystem, tool_search):
            await module.mount(coordinator, {"allowed_paths": [folder]})
        await tool_todo.mount(coordinator, {})
        tools: list[Any] = list(coordinator.get("tools").values())
        bases = {tool.name: sample_inputs(tool.input_schema, "file.txt") for tool in tools}
        for number in range(first, first + count):
            chance = random.Random(number)
            tool = chance.choice(tools)
            base = chance.choice(bases[tool.name])
            given = mutated_tree(base, chance)
            await _call(outcome, tool, given, number)


async def _call(outcome: Outcome, tool: Any, given: Any, number: int) -> None:
    outcome.cases += 1
    try:
        result = await tool.execute(given)
    except Exception as exc:
        outcome.fail(f"{tool.name}, input {number}: {exc!r} for {given!r:.200}")
        return
    if not isinstance(result, ToolResult) or (not result.success and not result.error):
        outcome.fail(f"{tool.name}, input {number}: returned {result!r:.200}")
    try:
        to_json(result)
    except ModelError as exc:
        outcome.fail(f"{tool.name}, input {number}: its result is no JSON: {exc}")


ASYNC = {"provider streams": _read_streams, "tool inputs": _call_tools}


# ── the chunk ──


def _read_inputs(outcome: Outcome, kind: str, read: Reader, first: int, count: int) -> None:
    slowest = 0.0
    for number in range(first, first + count):
        began = time.process_time()
        try:
            read(random.Random(number))
        except Exception as exc:
            outcome.fail(f"{kind}, input {number} of the chunk from {first}: {exc!r:.400}")
        slowest = max(slowest, time.process_time() - began)
        outcome.cases += 1
    if slowest > SECONDS:
        outcome.fail(f"{kind}: one input took {slowest:.1f} s of processor time")


def run(kind: str, backend: str, first: int, count: int) -> Outcome:
    """Read ``count`` inputs, the same for the same numbers."""
    outcome = Outcome()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if kind in ASYNC:
        anyio.run(ASYNC[kind], outcome, first, count, backend=backend)
    else:
        with tempfile.TemporaryDirectory() as folder:
            _read_inputs(outcome, kind, READERS[kind](first, Path(folder)), first, count)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if grown > MEGABYTES:
        outcome.fail(f"{kind}: memory grew by {grown:.0f} MB")
    outcome.count(kind, outcome.cases)
    return outcome


def chunks(share: float) -> list[Chunk]:
    """Chunks of every kind; only tools know which backend they run on."""
    found = []
    for kind, whole in INPUTS.items():
        backends = BACKENDS if kind in ASYNC else BACKENDS[:1]
        total = part_of(whole // len(backends), share)
        for backend in backends:
            for first in range(0, total, INPUTS_PER_CHUNK):
                arguments = {
                    "kind": kind,
                    "backend": backend,
                    "first": first,
                    "count": min(INPUTS_PER_CHUNK, total - first),
                }
                found.append(Chunk(f"{kind} on {backend} {first}", arguments))
    return found
