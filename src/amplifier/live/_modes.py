"""Modes that a person switches while a session is open: what an agent does without being asked about it."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

from amplifier.contracts import current_call
from amplifier.events import TOOL_PRE
from amplifier.kernel import AmplifierSession
from amplifier.models import HookResult
from amplifier.modules.hooks.approval._rules import BUILT_IN_TOOLS

__all__ = ["MODES", "Mode", "PermissionModes"]

Mode: TypeAlias = Literal["ask", "accept-edits", "plan"]

MODES: Final[dict[Mode, tuple[str, str]]] = {
    "ask": ("Ask", "Asks before it changes files or runs commands, as the rules of the plan say."),
    "accept-edits": ("Accept edits", "Changes files without asking; asks about everything else."),
    "plan": ("Plan", "Reads, and proposes what to do; changes nothing."),
}
"""Names and descriptions."""

_EDITING: Final = frozenset({"edit_file", "write_file"})
_READING: Final = frozenset({"glob", "grep", "list_directory", "read_file", "todo", "web_fetch"})
_FIRST: Final = -(2**31)


class PermissionModes:
    """The mode of one session. Tools count as what they are if the built-in module mounted them; a name alone allows nothing.

    Args:
        session: It is open.

    Attributes:
        mode: The one in force, from the next tool call on.
    """

    def __init__(self, session: AmplifierSession) -> None:
        self.mode: Mode = "ask"
        self._coordinator = session.coordinator
        session.coordinator.hooks.register(TOOL_PRE, self._gate, _FIRST, name="live.modes", fields=("tool_name",))

    def switch(self, mode: Any) -> None:
        """Change the mode.

        Raises:
            ValueError: There is no such mode.
        """
        if mode not in get_args(Mode):
            raise ValueError(f"expected a mode ({', '.join(get_args(Mode))}), got {mode!r:.80}")
        self.mode = mode

    def accepts_question(self) -> bool:
        """Whether the question that is being asked is about a change that the person has accepted in advance."""
        call = current_call()
        return (
            self.mode == "accept-edits"
            and call is not None
            and call.tool_name is not None
            and call.session_id == self._coordinator.session_id
            and self._is(call.tool_name, _EDITING)
        )

    def _is(self, tool: str, kind: frozenset[str]) -> bool:
        return tool in kind and self._coordinator.owner_of("tools", tool) in BUILT_IN_TOOLS[tool]

    async def _gate(self, event: str, data: dict[str, Any]) -> HookResult:
        if self.mode != "plan" or self._is(data["tool_name"], _READING):
            return HookResult()
        reason = "the session is in plan mode, in which nothing is changed or run: describe what you would do instead"
        return HookResult(action="deny", reason=reason)
