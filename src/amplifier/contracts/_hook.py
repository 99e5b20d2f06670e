"""The hook contract: a handler that observes events and may object to them.

`HookHandler` is the Protocol, and `CLAUSES` are the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from amplifier.models import HookResult

from ._clause import constructors, numbered


@runtime_checkable
class HookHandler(Protocol):
    """Called when an event is emitted.

    `isinstance` only checks that an object is callable. The clauses cover its behaviour.
    """

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Decide about an event.

        Args:
            event: Name of the event.
            data: This handler's own copy of the payload. Changing it has no effect elsewhere.

        Returns:
            The verdict. The event catalogue lists the verdicts that count for an event.
        """


HandlerAnswer: TypeAlias = HookResult | Mapping[str, Any] | None
"""A valid answer of a handler. None means ``continue``, but from a gate it denies."""

Handler: TypeAlias = Callable[[str, Any], Awaitable[HandlerAnswer] | HandlerAnswer]
"""A handler that can be registered: a `HookHandler`, or a plain function.

A plain function is called on the event loop's thread. The payload is a dict. A handler may annotate
it as ``dict[str, Any]`` or as a TypedDict of `amplifier.events.payloads`.
"""

OnFailure: TypeAlias = Literal["continue", "deny"]
"""The effect of a handler's failure or timeout: skip the handler, or deny the event.

A handler that denies is a gate. A gate that returns nothing has not decided, so it denies.
"""


required, clarified, recommended, advised = constructors("hook contract", "hooks")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    H1=required(
        "A handler is called as handler(event, data).",
        hint="Declare async def handler(event, data).",
    ),
    H2=required(
        "Handlers are registered through coordinator.hooks, not mounted.",
        source="contract clarifications: verdicts",
        hint="Call coordinator.hooks.register(event, handler) in mount.",
        look_at=("mount",),
    ),
    H3=required(
        "A handler answers with a valid HookResult on every path, for every event and payload, "
        "known or not.",
        law="L7",
        hint='Return HookResult(action="continue") on every path, unknown events and odd payloads '
        "included. None from a gate denies.",
    ),
    H4=required(
        "A handler raises nothing but cancellation, whatever the payload.",
        law="L4",
        hint="Read the payload with .get, test the values, and catch Exception around any code "
        "that may fail.",
    ),
    H5=clarified(
        "A modify carries the whole new payload, with all keys of the original, as JSON.",
        law="L7",
        hint="Return a copy of the whole payload with your changes as data, made of dicts, lists, "
        "strings, numbers, booleans and None.",
    ),
    H6=clarified(
        "An inject_context carries text.",
        law="L7",
        hint="Set context_injection to a non-empty string.",
    ),
    H7=clarified(
        "A handler does not change its payload.",
        law="L7",
        hint="Copy the parts that you want to change: {**data, ...}, and copy.deepcopy for nested "
        "values.",
    ),
    H8=recommended(
        "Handlers are async.",
        source="contract clarifications: hooks",
        hint="Declare handlers with async def.",
    ),
    H9=recommended(
        "mount returns a cleanup that unregisters every handler.",
        law="L1",
        hint="Keep the return values of register, and call them in the cleanup that mount returns.",
        look_at=("mount",),
    ),
    H10=recommended(
        "Priorities lie between 10 and 90.",
        law="L7",
        hint="Choose a priority from 10 to 90. The edges belong to the application.",
        look_at=("mount",),
    ),
    H11=recommended(
        "Every registration has a name and is logged.",
        hint='Pass name="..." to register, and log it.',
        look_at=("mount",),
    ),
    H12=recommended(
        "The configuration can choose the events to handle.",
        hint='Read a setting such as "events".',
        look_at=("mount",),
    ),
    H13=advised(
        "A denial carries a reason, a question carries a prompt.",
        hint="Set reason on a deny and approval_prompt on an ask_user.",
    ),
    H14=advised(
        "A handler that guards something registers with on_failure='deny'.",
        law="L7",
        hint='Register gates with on_failure="deny".',
        look_at=("mount",),
    ),
    H15=clarified(
        "A question that no one answers in time denies, unless a setting says otherwise.",
        law="L7",
        hint='Leave approval_default at "deny", and answer "deny" if your own wait for an '
        "approval ends without an answer.",
    ),
    H16=advised(
        "A modify keeps the keys of objects and the lengths of lists at every depth, and changes "
        "only leaves.",
        law="L7",
        hint="Replace a value that you want to hide or shorten by a text in its place, and copy "
        "every other member, empty ones too.",
    ),
)
# fmt: on
