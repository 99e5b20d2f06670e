"""Models to JSON and back, against the published kernel's pydantic models in the same process.

Needs the published kernel beside ours, in an environment of its own: ``make bench ARGS="-s -k roundtrip"``.

Samples alternate between the two sides, and the figure is the median of the ratios within each round, so that whatever
else the machine is doing hits both alike. Only ratios are asserted.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from amplifier_core.message_models import ChatRequest as ReferenceRequest
from amplifier_core.models import HookResult as ReferenceResult

from amplifier.models import ChatRequest, HookResult, from_dict, from_json, to_dict, to_json
from benchmarks.payloads import chat_request

ROUNDS = 31
REPEATS = 20

Call = Callable[[], Any]


class Duel:
    """Two functions timed in turn."""

    def __init__(self, reference: Call, ours: Call) -> None:
        self._reference, self._ours = reference, ours
        self.reference_us: list[float] = []
        self.our_us: list[float] = []

    def run(self, rounds: int = ROUNDS, repeats: int = REPEATS) -> Duel:
        for call in (self._reference, self._ours):
            _microseconds(call, repeats)
        for number in range(rounds):
            # Each goes first every other time.
            first_reference = number % 2 == 0
            for is_reference in (first_reference, not first_reference):
                call, samples = (self._reference, self.reference_us) if is_reference else (self._ours, self.our_us)
                samples.append(_microseconds(call, repeats))
        return self

    @property
    def ratio(self) -> float:
        """How many times faster we are."""
        return statistics.median(r / o for r, o in zip(self.reference_us, self.our_us, strict=True))

    def line(self, name: str) -> str:
        reference, ours = statistics.median(self.reference_us), statistics.median(self.our_us)
        return f"{name:<12}{reference:>12.0f} µs{ours:>12.0f} µs{self.ratio:>8.2f}x"


def _microseconds(call: Call, repeats: int) -> float:
    gc.collect()
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats * 1e6


@pytest.fixture(scope="module")
def duels() -> dict[str, Duel]:
    data = chat_request(messages=200)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    reference, ours = ReferenceRequest.model_validate_json(text), from_json(ChatRequest, text)
    # Both sides keep everything, or the comparison is about nothing.
    assert json.loads(reference.model_dump_json(exclude_none=True)) == json.loads(to_json(ours)) == data
    assert to_json(from_json(ChatRequest, to_json(ours))) == to_json(ours)
    duels = {
        "encode": Duel(reference.model_dump_json, lambda: to_json(ours)),
        "decode": Duel(lambda: ReferenceRequest.model_validate_json(text), lambda: from_json(ChatRequest, text)),
        "to dict": Duel(lambda: reference.model_dump(mode="json"), lambda: to_dict(ours)),
        "from dict": Duel(lambda: ReferenceRequest.model_validate(data), lambda: from_dict(ChatRequest, data)),
        "construct": Duel(lambda: ReferenceRequest(**data), lambda: ChatRequest(**data)),
    }
    print(f"\n{len(text):,} bytes, {ROUNDS} rounds of {REPEATS}\n{'':<12}{'pydantic':>15}{'ours':>15}{'ratio':>9}")
    for name, duel in duels.items():
        print(duel.run().line(name))
    return duels


@pytest.mark.parametrize(("name", "at_least"), [("encode", 2.5), ("decode", 1.3)])
def test_a_request_of_200_messages_is_faster_than_pydantic(duels, name, at_least):
    assert duels[name].ratio >= at_least


def test_orjson_is_still_the_codec_to_choose():
    msgspec = pytest.importorskip("msgspec", reason="the codec we did not choose")
    data = chat_request(messages=200)
    text = orjson.dumps(data)
    writing = Duel(lambda: msgspec.json.encode(data), lambda: orjson.dumps(data)).run()
    reading = Duel(lambda: msgspec.json.decode(text), lambda: orjson.loads(text)).run()
    print(f"\norjson against msgspec: writes {writing.ratio:.2f}x, reads {reading.ratio:.2f}x")
    assert writing.ratio > 1.3
    assert writing.ratio * reading.ratio > 1


def test_an_empty_hook_result_is_faster_than_pydantic():
    for name, reference, ours in [
        ("HookResult()", ReferenceResult, HookResult),
        ("(action=...)", lambda: ReferenceResult(action="continue"), lambda: HookResult(action="continue")),
    ]:
        duel = Duel(reference, ours).run(repeats=2000)
        print(f"\n{name:<12}{statistics.median(duel.our_us):>8.2f} µs, {duel.ratio:.1f}x")
        assert duel.ratio >= 1.5
