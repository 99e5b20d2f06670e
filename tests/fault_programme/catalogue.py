"""All classes of faults, in the order in which they run."""

from __future__ import annotations

from typing import Final

from .classes import (
    crash_images,
    foreign_calls,
    holes,
    hostile_inputs,
    kills,
    lifecycle,
    load,
    planted_bugs,
    same_seed,
    signals,
)
from .parts import FaultClass

CLASSES: Final[dict[str, FaultClass]] = {
    each.name: each
    for each in (
        FaultClass(
            name="foreign-calls",
            title="Every call into a module fails",
            unit="faults injected",
            chunks=foreign_calls.chunks,
            run=foreign_calls.run,
            quick_share=0.02,
        ),
        FaultClass(
            name="signals",
            title="A signal at 25 moments of a real process",
            unit="processes signalled",
            chunks=signals.chunks,
            run=signals.run,
            quick_share=0.02,
        ),
        FaultClass(
            name="lifecycle",
            title="Random walk over the lifecycle against its model",
            unit="steps",
            chunks=lifecycle.chunks,
            run=lifecycle.run,
            quick_share=0.001,
        ),
        FaultClass(
            name="hostile-inputs",
            title="Hostile and mutated inputs",
            unit="inputs",
            chunks=hostile_inputs.chunks,
            run=hostile_inputs.run,
            quick_share=0.005,
        ),
        FaultClass(
            name="kills",
            title="kill -9 of the persistent context",
            unit="kills",
            chunks=kills.chunks,
            run=kills.run,
            quick_share=0.006,
        ),
        FaultClass(
            name="crash-images",
            title="Crash images of the store, writes that are refused",
            unit="images and limits",
            chunks=crash_images.chunks,
            run=crash_images.run,
            quick_share=0.02,
        ),
        FaultClass(
            name="load",
            title="Load, with everything flat afterwards",
            unit="emits, handlers, calls and sessions",
            chunks=load.chunks,
            run=load.run,
            quick_share=0.003,
        ),
        FaultClass(
            name="same-seed",
            title="The same seed gives the same event log",
            unit="seeds run twice",
            chunks=same_seed.chunks,
            run=same_seed.run,
            quick_share=0.005,
        ),
        FaultClass(
            name="holes",
            title="Holes that attackers found stay closed",
            unit="tests",
            chunks=holes.chunks,
            run=holes.run,
            quick_share=0.02,
        ),
        FaultClass(
            name="planted-bugs",
            title="Planted bugs, each caught by its class",
            unit="bugs",
            chunks=planted_bugs.chunks,
            run=planted_bugs.run,
            quick_share=0.02,
        ),
    )
}
