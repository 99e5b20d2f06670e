"""What one run of the kit has to do. The controller sends it to each worker process as JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import attrs

from amplifier.conformance.harness.check_registry import Check
from amplifier.conformance.target.locate import BACKENDS, Target


@attrs.frozen(kw_only=True)
class Job:
    """What is to be examined, and how.

    Attributes:
        target: The module, located.
        module_type: Its type, as far as the caller named one.
        config: The configuration to mount it with.
        plan: What else the mount plan of its session holds.
        profile: ``quick`` or ``thorough``.
        backends: Where to run it.
        only: Clause ids or names of checks; all if empty.
        replay: One step and its case, as `replay_token` made it.
        skip: Names of steps that are done, or that ended an earlier worker.
        has_hung: Whether a worker has ended in a call of the module.
        seconds: What the worker may take, in seconds, not counting those in which there was no processor for it.
    """

    target: Target
    module_type: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    profile: str = "quick"
    seed: int = 0
    backends: list[str] = attrs.field(factory=lambda: list(BACKENDS))
    only: list[str] = attrs.field(factory=list)
    replay: str | None = None
    skip: list[str] = attrs.field(factory=list)
    has_hung: bool = False
    seconds: float = 0.0

    def selects(self, check: Check) -> bool:
        """Whether ``replay`` and ``only`` ask for a check."""
        if self.replay is not None:
            return self.replay.partition(":")[0] == check.name
        return not self.only or check.name in self.only or not set(self.only).isdisjoint(check.clauses)

    def judges(self, check: Check, clause: str) -> bool:
        """Whether a run is to judge a clause by a check: ``only`` may name clauses, and a check looks at others as well."""
        if not self.selects(check):
            return False
        return self.replay is not None or not self.only or clause in self.only or check.name in self.only


def replay_token(step: str, case: Any) -> str:
    """A step and its case in one word for the command line."""
    packed = base64.urlsafe_b64encode(json.dumps(case, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{step}:{packed}"


def read_replay_token(text: str) -> tuple[str, Any]:
    """The step and the case of a token.

    Raises:
        ValueError: The text is no token.
    """
    step, _, packed = text.rpartition(":")
    return step, json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
