"""The configuration of hooks-otel."""

from __future__ import annotations

import attrs

from .._shared.configuration import flag, option, text, whole_number

MODULE = "hooks-otel"


@attrs.frozen(kw_only=True)
class OtelOptions:
    """The configuration of hooks-otel.

    Attributes:
        agent_name: The name of the main session's agent; child sessions of tool-task have their own.
        capture_content: Whether spans have what is asked and answered, with secrets removed.
        max_content_chars: The length at which one captured content is cut.
        events: Whether events of the session that are no spans are added to its spans.
    """

    agent_name: str = option(text, default="amplifier")
    capture_content: bool = option(flag, default=False)
    max_content_chars: int = option(whole_number(1), default=16_384)
    events: bool = option(flag, default=True)
