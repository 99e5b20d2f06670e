"""Checks of hooks that count or remember: what their handlers return in the course of a session in which tools fail."""

from __future__ import annotations

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext
from amplifier.conformance.inputs.hook_payloads import reaching_payloads
from amplifier.conformance.inputs.hostile_values import is_harmless
from amplifier.conformance.inputs.session_events import session_events
from amplifier.conformance.target.source_literals import choices_in, inputs_in

from .event_series import EventSeries

_TOOL = "look"
_MAX_NAMES = 3


@check("H3", "H4", "H5", "H6", "H7", "H13", "H14", kind="behaviour", types=("hook",))
async def follows_a_session(ctx: CheckContext) -> None:
    """Passes the events of a session to the handlers, in order: turn after turn in which tools succeed, fail and raise."""
    target = ctx.loaded.target
    tool_input = next(reaching_payloads("tool:pre", inputs_in(target), ()))["tool_input"]
    names = [_TOOL, *(word for word in choices_in(target) if is_harmless(word) and word not in tool_input)]
    for name in names[:_MAX_NAMES]:
        async with ctx.mount() as mounted:
            series = EventSeries(ctx)
            for event, data in session_events(name, tool_input):
                if name != _TOOL and not event.startswith("tool:"):
                    continue  # these were passed with the first name
                for registration in mounted.registrations:
                    if registration.event in (event, "*"):
                        await series.run(mounted, registration, [(event, data)])
            series.check_payloads()
        if ctx.has_violations:
            return
