"""Traces the content blocks that pass through a provider's code, as dicts on their way in and out.

For providers whose server is fixed, so that the fake LLM server cannot replace it. The profiler reads return values and
local variables; nothing is changed and no name is relied on: a block counts by its content alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from amplifier.models import ChatResponse, ThinkingBlock

Part = dict[str, Any]

_TYPES = {
    "text": "text",
    "thinking": "thinking",
    "redacted_thinking": "redacted_thinking",
    "tool_use": "tool_call",
    "tool_call": "tool_call",
}
_FIELDS = ("type", "text", "thinking", "data", "name")
_MOST_NODES = 3000
_MOST_LISTS = 500


class TracedContent:
    """The traced blocks.

    Attributes:
        thoughts: Text and signature, if any, of every thinking block.
        own: Those of them that the module's own functions held when they returned.
        contents: Every list of blocks.
    """

    def __init__(self) -> None:
        self.thoughts: set[tuple[str, str | None]] = set()
        self.own: set[tuple[str, str | None]] = set()
        self.contents: list[list[Part]] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []

    def take(self, value: Any, *, is_own: bool) -> None:
        """Find blocks in a value; one that the module holds is read again, since it may have been changed."""
        if not isinstance(value, (dict, list, tuple)) or (id(value) in self._seen and not is_own):
            return
        self._seen.add(id(value))
        self._kept.append(value)  # so that no other value gets its id
        waiting, left = [value], _MOST_NODES
        while waiting and left:
            left -= 1
            node = waiting.pop()
            if isinstance(node, dict):
                self._take_dict(node, is_own)
                waiting += node.values()
            elif isinstance(node, (list, tuple)):
                is_content = all(isinstance(each, dict) and each.get("type") in _TYPES for each in node)
                if is_content and len(node) > 1 and len(self.contents) < _MOST_LISTS:
                    self.contents.append([dict(each) for each in node])
                waiting += node

    def _take_dict(self, node: dict[Any, Any], is_own: bool) -> None:
        if node.get("type") == "thinking" and isinstance(node.get("thinking"), str):
            signature = node.get("signature")
            thought = (node["thinking"], signature if isinstance(signature, str) and signature else None)
            self.thoughts.add(thought)
            if is_own:
                self.own.add(thought)


@contextmanager
def traced_content(owns: Callable[[str], bool]) -> Iterator[TracedContent]:
    """Trace everything that runs in the body, in this thread and in those it starts.

    Args:
        owns: Whether a file belongs to the module; variables are read there only.
    """
    traced = TracedContent()
    owned: dict[str, bool] = {}

    def look(frame: FrameType, event: str, value: Any) -> None:
        if event != "return":
            return
        name = frame.f_code.co_filename
        if name not in owned:
            owned[name] = owns(name)
        traced.take(value, is_own=owned[name])
        if owned[name]:
            for variable in list(frame.f_locals.values()):
                traced.take(variable, is_own=True)

    before, before_threads = sys.getprofile(), threading.getprofile()
    sys.setprofile(look)
    threading.setprofile(look)
    try:
        yield traced
    finally:
        sys.setprofile(before)
        threading.setprofile(before_threads)


def lost_signature(traced: TracedContent, response: ChatResponse, sent: set[str]) -> str | None:
    """A thinking block that the provider received with a signature and returns with another one or none."""
    known: dict[str, set[str]] = {}
    for text, signature in traced.thoughts:
        if signature is not None and text not in sent:
            known.setdefault(text, set()).add(signature)
    for block in response.content:
        thought = block.thinking if isinstance(block, ThinkingBlock) else ""
        if isinstance(block, ThinkingBlock) and thought in known and block.signature not in known[thought]:
            first = sorted(known[thought])[0]
            return f"a thought came with the signature {first!r} and is in the response with {block.signature!r}"
    return None


def unsigned(traced: TracedContent, sent: dict[str, str]) -> str | None:
    """A thinking block that was sent with a signature and that the provider passes on only without it."""
    for text, signature in sent.items():
        passed = {found for thought, found in traced.own if thought == text}
        if passed == {None}:
            return f"a thought that was sent with the signature {signature!r} is passed on without it"
    return None


def lost_part(traced: TracedContent, response: ChatResponse, sent: set[str]) -> str | None:
    """Blocks that are missing in the response: of the list that the response was made of."""
    shown = [_key({name: getattr(block, name, None) for name in _FIELDS}) for block in response.content]
    lists_calls = bool(response.tool_calls) and not any(key[0] == "tool_call" for key in shown)
    texts = "\n".join(part[1] for part in shown if part[0] == "text")
    problem = None
    for parts in traced.contents:
        keys = [_key({**part, "type": _TYPES[part["type"]]}) for part in parts]
        ids = {part.get("id") for part in parts}
        is_ours = bool(ids & sent) or any(key[1] in sent for key in keys)
        if is_ours or not any(key in shown for key in keys if key[1] and key[0] != "tool_call"):
            continue  # a list that was sent, or another response
        wanted = [key for key in keys if key[0] != "text" and not (lists_calls and key[0] == "tool_call")]
        here = [key for key in shown if key[0] != "text"]
        missing_text = [key for key in keys if key[0] == "text" and key[1] not in texts]
        rest = iter(shown)  # each is searched after the one before: two calls of one tool have the same key
        is_in_order = all(key in rest for key in keys if key in shown)
        if wanted == here and not missing_text and is_in_order:
            return None
        found, expected = [key[0] for key in shown], [key[0] for key in keys]
        problem = f"an answer with the parts {expected!r} became a response with the blocks {found!r}"
    return problem


def _key(part: Part) -> tuple[str, str]:
    """Type and text of a block; ids may be new."""
    kind = str(part.get("type"))
    name = {"text": "text", "thinking": "thinking", "redacted_thinking": "data", "tool_call": "name"}.get(kind, "type")
    return kind, str(part.get(name) or "")
