"""The hook contract: a handler that watches events and may object to them.

`HookHandler` is the Protocol, `CLAUSES` are the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from amplifier.models import HookResult

from ._clause import Clause, recommended, required


@runtime_checkable
class HookHandler(Protocol):
    """What is called when an event is emitted.

    `isinstance` only checks that something is callable; the clauses cover its behaviour.
    """

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Look at an event and decide.

        Args:
            event: The event's name.
            data: A copy of the payload that belongs to this handler alone; changes have no effect elsewhere.

        Returns:
            The verdict. Which verdicts count for an event is in the event catalogue.
        """
        ...


HandlerAnswer: TypeAlias = HookResult | Mapping[str, Any] | None
"""What the kernel understands as an answer; None is the same as ``continue``, but from a gate it denies."""

Handler: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[HandlerAnswer] | HandlerAnswer]
"""What can be registered: a `HookHandler`, or a plain function, which is called on the loop's own thread."""

OnFailure: TypeAlias = Literal["continue", "deny"]
"""What a handler's failure or timeout means: it is skipped, or, for a gate, the operation is denied.

A gate that returns nothing has not decided, so that denies, too.
"""


CLAUSES: tuple[Clause, ...] = (
    required("H1", "A handler is called as handler(event, data)."),
    required("H2", "Handlers are registered through coordinator.hooks, not mounted."),
    required(
        "H3",
        "A handler answers with a valid HookResult on every path, for every event and payload, known or not.",
        law="L7",
    ),
    required("H4", "A handler raises nothing but cancellation, whatever the payload.", law="L4"),
    required("H5", "A modify carries the whole new payload, as JSON.", law="L7"),
    required("H6", "An inject_context carries text.", law="L7"),
    required("H7", "A handler does not change the data it was given.", law="L7"),
    recommended("H8", "Handlers are async."),
    recommended("H9", "mount returns a cleanup that unregisters every handler.", law="L1"),
    recommended("H10", "Priorities lie between 10 and 90.", law="L7"),
    recommended("H11", "Every registration has a name and is logged."),
    recommended("H12", "The configuration can choose which events are handled."),
    recommended("H13", "A denial carries a reason, a question carries a prompt."),
    recommended("H14", "A handler that guards something registers with on_failure='deny'.", law="L7"),
)
