"""The pages of events and errors, from their catalogue and their classes."""

from __future__ import annotations

from collections.abc import Iterable

from amplifier import errors, events
from amplifier.events import Event

from ._markdown import joined, named, page, read_doc, table

_IN_A_TRACE = (
    "- `in a trace`: what the event becomes with [hooks-otel](modules/hooks-otel.md). `invoke_agent`, `chat` and `execute_tool`: part of "
    "the span of a turn, a model call or a tool call. `event`: an event of the innermost open span. `session`: nothing but the session's "
    "id, because it happens outside of turns. `none`: nothing, because there are too many of its kind. In "
    "[a trace of the command line](../how-to/see-what-an-agent-did.md) they become the row of a turn, a model call or a tool call; a row of "
    "their own below it (`approval:*` share one); a part of the session's row, or a row below it if something failed; a part of the "
    "row of the model call."
)


def events_page() -> str:
    """Show the catalogue."""
    *common, in_children = (f"`{key}`" for key in events.COMMON_KEYS)
    columns = read_doc(Event.__doc__).sections["Attributes"]
    return page(
        "Events",
        read_doc(events.__doc__).text,
        "Each name is a constant of `amplifier.events`, in capitals and with underscores: `TOOL_PRE` is `tool:pre`. "
        f"The kernel puts {', '.join(common)} into every payload, and {in_children}, the id of a tool call, into those of a session "
        "that runs inside that call of another session. Events marked † are terminal. The columns:",
        "\n".join([*named(columns), _IN_A_TRACE]),
        "## Canonical events",
        _event_table(events.ALL_EVENTS),
        "## Events of this kernel",
        _event_table(events.OUR_EVENTS),
        "## Live text in its published form",
        "Published providers emit these; ours do so for handlers that are registered for them by name. `content_block` events report the same.",
        _event_table(
            [
                name
                for name in events.CATALOGUE
                if name not in {*events.ALL_EVENTS, *events.OUR_EVENTS}
            ]
        ),
    )


def _event_table(names: Iterable[str]) -> str:
    rows = []
    for name in names:
        event = events.CATALOGUE[name]
        keys = ", ".join(f"`{key}`" for key in event.keys)
        verdict = ", ".join(event.verdict) or "ignored"
        mark = " †" if event.terminal else ""
        rows.append(
            (
                f"`{name}`{mark}",
                keys,
                event.emitted_by,
                verdict,
                event.summary,
                events.TRACE_ROLES[name],
            )
        )
    return table(("name", "keys", "emitted_by", "verdict", "summary", "in a trace"), rows)


def errors_page() -> str:
    """Show the tree, then every class in the order of the source."""
    classes = [
        value
        for name, value in vars(errors).items()
        if name in errors.__all__ and isinstance(value, type)
    ]
    return page(
        "Errors", read_doc(errors.__doc__).text, *(_error_entry(error) for error in classes)
    )


def _error_entry(error: type) -> str:
    doc = read_doc(error.__doc__)
    # A private base is a detail of the file; its own public bases are what a caller can catch.
    bases = [
        base
        for parent in error.__bases__
        for base in (parent.__bases__ if parent.__name__[0] == "_" else [parent])
    ]
    shown = ", ".join(f"`{_public_name(base)}`" for base in bases)
    attributes = "\n".join(named(doc.sections.get("Attributes", [])))
    return joined((f"## `{error.__name__}`", f"Bases: {shown}.", doc.text, attributes))


def _public_name(cls: type) -> str:
    """Spell out the module only where one of our names hides a builtin."""
    hidden = cls.__module__ != errors.__name__ and cls.__name__ in errors.__all__
    return f"{cls.__module__}.{cls.__name__}" if hidden else cls.__name__
