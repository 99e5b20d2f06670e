"""What may be done without a question: the mode of a chat, and what the user has allowed for good in a project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread

from amplifier._spelling import suggestion
from amplifier.cli.core.exit_codes import CommandError
from amplifier.contracts import Coordinator
from amplifier.events import TOOL_PRE
from amplifier.models import HookResult
from amplifier.modules.hooks.approval import MODES, rule_for_call

from .configuration import Project


class Permissions:
    """The permissions of one run.

    Args:
        directory: Where the agent works.
        mode: One of `MODES`.

    Attributes:
        mode: The current one.
    """

    def __init__(self, directory: Path, mode: str = "ask") -> None:
        self._project = Project(directory)
        self._set_rules: Any = None
        self._allowed: list[dict[str, Any]] = []
        self.mode: str = mode

    def open(self, coordinator: Coordinator, *, remembers: bool = True) -> None:
        """Decide for this session, also by what is remembered if wanted so.

        Raises:
            CommandError: A mode was chosen, and the plan has no module that keeps it.
        """
        self._set_rules = coordinator.get_capability("approval.set_rules")
        self._allowed = self._project.state().get("rules", []) if remembers else []
        self.switch(self.mode)
        if remembers and self._set_rules is not None:
            coordinator.hooks.register(TOOL_PRE, self._read_again, name="cli-permissions")

    async def _read_again(self, event: str, data: dict[str, Any]) -> HookResult:
        """What was revoked meanwhile, perhaps in another window, is not allowed any more."""
        allowed = (await anyio.to_thread.run_sync(self._project.state)).get("rules", [])
        if allowed != self._allowed:
            self._allowed = allowed
            self.switch(self.mode)
        return HookResult()

    def switch(self, mode: str | None = None) -> str:
        """Go on in another mode, in the next one if none is given; returns it in words.

        Raises:
            CommandError: There is no such mode, or the plan cannot have it.
        """
        names = list(MODES)
        mode = mode or names[(names.index(self.mode) + 1) % len(names)]
        if mode not in MODES:
            raise CommandError(f"there is no mode {mode!r} ({', '.join(names)}){suggestion(mode, names)}")
        if self._set_rules is not None:
            self._set_rules([*MODES[mode][1], *self._allowed])
        elif mode != "ask":
            raise CommandError("the plan has no hooks-approval, so there are no modes")
        self.mode = mode
        return f"mode {mode}: {MODES[mode][0]}"

    def offer(self, call: tuple[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
        """The rule that would allow such a call for good in this project; None if there is none."""
        return None if call is None or self._set_rules is None else rule_for_call(*call)

    def remember(self, rule: dict[str, Any]) -> None:
        """Keep a rule for this project."""
        self._allowed = [*self._project.state().get("rules", []), rule]
        self._project.change(rules=self._allowed)
        self.switch(self.mode)


def rule_in_words(rule: Mapping[str, Any]) -> str:
    """What a remembered rule allows."""
    if "command" in rule:
        return f"the command {' '.join(rule['command'])!r}"
    return f"edits of {rule['path']}" if "path" in rule else f"every call of {rule['tool']}"
