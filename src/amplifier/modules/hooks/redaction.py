"""hooks-redaction: removes secrets and personal data from events before other hooks receive them.

By default, the data that the agent works with remains unchanged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from amplifier._internal.json import (
    REDACTED,
    SENSITIVE_KEYS,
    Frame,
    copy_json,
    is_media,
    rebuild,
    redact_secrets,
    text_size,
)
from amplifier.contracts import Coordinator
from amplifier.errors import PlanError
from amplifier.events import ALL_EVENTS, CATALOGUE, LLM_STREAM_ABORTED, OUR_EVENTS
from amplifier.models import HookResult, ToolResult

from .._shared.configuration import (
    Kind,
    choices,
    list_of,
    option,
    read_options,
    texts,
    whole_number,
)
from .._shared.failure import ToolFailure
from .._shared.worker_threads import Workers

__all__ = [
    "MODULE",
    "PERSONAL",
    "STRUCTURAL",
    "WORKING_EVENTS",
    "RedactionHook",
    "RedactionOptions",
    "Redactor",
    "mount",
    "read_redaction_options",
    "redact_personal",
]

__amplifier_module_type__ = "hook"

MODULE = "hooks-redaction"

_MIN_LITERAL_CHARS = 4

# Changing one of these events changes the model's prompt, or the input or result of a tool.
WORKING_EVENTS = frozenset(event.name for event in CATALOGUE.values() if "modify" in event.verdict)
# A secret may be spread over several pieces, so that no single piece contains it.
_DELTAS = frozenset(name for name in ALL_EVENTS if name.endswith(":delta"))

STRUCTURAL = frozenset(
    {
        "session_id",
        "parent_id",
        "timestamp",
        "parent",
        "lvl",
        "level",
        "tool_name",
        "provider",
        "orchestrator",
        "status",
        "type",
        "ts",
        "seq",
        "turn_id",
        "span_id",
        "parent_span_id",
        "model",
        "usage.cost_usd",
        "tool_call_id",
        "parallel_group_id",
        "module_id",
        "hook_name",
        "event",
        "redaction",
    }
)
"""Fields that identify events. They are never changed, as in the published module."""


# ── options ───────────────────────────────────────────────────────────────────────────────────────


_RULES = attrs.evolve(
    choices("secrets", "pii-basic", "pii"),
    convert=lambda rules: tuple(
        dict.fromkeys("pii-basic" if rule == "pii" else rule for rule in rules)
    ),
)
_PATHS = attrs.evolve(
    list_of(
        "names such as note or usage.cost_usd",
        lambda item: isinstance(item, str) and all(item.split(".")) and "[" not in item,
    ),
    convert=STRUCTURAL.union,
)
_LITERALS = list_of(
    f"texts of at least {_MIN_LITERAL_CHARS} characters",
    lambda item: isinstance(item, str) and bool(item.strip()) and len(item) >= _MIN_LITERAL_CHARS,
)
_NO_PATTERNS = Kind(
    "no regular expressions, because one that backtracks would block every session of the process "
    "(use literals, prefixes or keys)",
    lambda value: False,
)


@attrs.frozen(kw_only=True)
class RedactionOptions:
    """The configuration of hooks-redaction.

    Attributes:
        rules: ``"secrets"`` and ``"pii-basic"``. The latter can be shortened to ``"pii"``.
        allowlist: Members of the payload, such as ``note`` or ``usage.cost_usd``, that remain
            unchanged with everything below them.
        enabled_events: The events to redact, except those to skip.
        skip_events: The events to skip.
        additional_events: More events to redact.
        keys: More names of members that hold secrets.
        literals: Texts to redact wherever they occur.
        prefixes: Beginnings of secret tokens. The whole token is redacted.
        patterns: Not accepted.
        priority: The priority of the handlers, which run before those that show or store events.
    """

    rules: tuple[str, ...] = option(_RULES, default=("secrets", "pii-basic"), restricts=True)
    allowlist: frozenset[str] = option(_PATHS, default=STRUCTURAL, restricts=True)
    enabled_events: tuple[str, ...] = option(
        texts(), default=(*ALL_EVENTS, *OUR_EVENTS, LLM_STREAM_ABORTED), restricts=True
    )
    skip_events: tuple[str, ...] = option(
        texts(), default=(*WORKING_EVENTS, *_DELTAS), restricts=True
    )
    additional_events: tuple[str, ...] = option(texts(), default=(), restricts=True)
    keys: tuple[str, ...] = option(texts(), default=(), restricts=True)
    literals: tuple[str, ...] = option(_LITERALS, default=(), restricts=True)
    prefixes: tuple[str, ...] = option(_LITERALS, default=(), restricts=True)
    patterns: None = option(_NO_PATTERNS, default=None, restricts=True)
    priority: int = option(whole_number(), default=10)

    def __attrs_post_init__(self) -> None:
        if not (self.rules or self.literals or self.prefixes):
            problem = f"expected {_RULES.expected}, got an empty list without literals or prefixes"
            raise PlanError([("$.rules", problem)])

    @property
    def events(self) -> list[str]:
        """The events to redact, each once."""
        names = dict.fromkeys([*self.enabled_events, *self.additional_events])
        return [name for name in names if name not in self.skip_events]


def read_redaction_options(config: Mapping[str, object] | None) -> RedactionOptions:
    """Read the module's configuration.

    Raises:
        PlanError: The configuration is wrong.
    """
    return read_options(RedactionOptions, MODULE, config)


PERSONAL = "[REDACTED:PII]"

_LOCAL = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.!#$%&'*+/=?^_`{|}~-"
)
_DOMAIN = re.compile(
    r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)
_DOMAIN_ANY_LETTER = re.compile(r"@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}\.[^\W\d_]{2,24}(?![\w-])")
# Matches telephone numbers with a country code, or in the North American grouping. Plain digits may
# be any kind of number.
_TELEPHONE = re.compile(
    r"\+(?<![\w+]\+)\d(?:[ ().-]{0,2}\d){7,14}(?!\d)"
    r"|(?<![\w.-])(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?![\w-]|\.\d)"
)


# ── personal data ─────────────────────────────────────────────────────────────────────────────────
# E-mail addresses and telephone numbers are found in linear time. Every repetition is bounded, and
# the search for an address starts at its ``@``. The obvious pattern tries every start of a long
# word, which is quadratic.


def redact_personal(text: str) -> str:
    """Replace e-mail addresses and telephone numbers with ``[REDACTED:PII]``."""
    if "@" in text:
        text = _redact_addresses(text)
    if len(text) >= 8 and ("+" in text or "-" in text or "." in text or " " in text):
        text = _TELEPHONE.sub(PERSONAL, text)
    return text


def _redact_addresses(text: str) -> str:
    pattern = _DOMAIN if text.isascii() else _DOMAIN_ANY_LETTER
    pieces: list[str] = []
    done = 0
    for match in pattern.finditer(text):
        begin = match.start()
        # Go back, but not beyond the previous match, so that no character is examined twice.
        while begin > done and (
            text[begin - 1] in _LOCAL or (text[begin - 1] > "\x7f" and text[begin - 1].isalnum())
        ):
            begin -= 1
        if begin == match.start():
            continue
        pieces += (text[done:begin], PERSONAL)
        done = match.end()
    return "".join(pieces) + text[done:] if pieces else text


_MAX_DEPTH = 1000
_JSON_LEAVES = (str, int, float, bool, type(None))
_MARKS = ("[REDACTED", "[UNREADABLE ")


# ── redactor ──────────────────────────────────────────────────────────────────────────────────


class Redactor:
    """Copies payloads without secrets and personal data.

    Args:
        options: The configuration.
    """

    def __init__(self, options: RedactionOptions | None = None) -> None:
        self._options = options or RedactionOptions()
        self._keys = SENSITIVE_KEYS.union(self._options.keys)
        paths = [path.split(".") for path in sorted(self._options.allowlist)]
        self._allowed_members = frozenset(steps[0] for steps in paths if len(steps) == 1)
        self._allowed_below = [steps for steps in paths if len(steps) > 1]
        literals = sorted(map(re.escape, self._options.literals), key=len, reverse=True)
        prefixes = [
            rf"(?<![\w]){re.escape(prefix)}[\w.~+/=-]*+" for prefix in self._options.prefixes
        ]
        self._own = re.compile("|".join([*literals, *prefixes])) if literals or prefixes else None

    def redact(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        """Return a redacted copy of the payload, or None if there is nothing to redact."""
        kept = {key: value for key, value in payload.items() if key in self._allowed_members}
        searched = {key: value for key, value in payload.items() if key not in kept}
        redacted: Any = searched
        if "secrets" in self._options.rules:
            redacted = redact_secrets(redacted, self._keys)
        if self._own is not None or "pii-basic" in self._options.rules:
            redacted = self._redact_texts(redacted)
        for steps in self._allowed_below:
            redacted = _put_back(searched, redacted, steps)
        if _is_json(payload):
            return None if redacted == searched else {**redacted, **copy_json(kept)}
        # Redaction has converted objects of other classes, so comparing the two is pointless.
        result = ToolResult(output={**redacted, **kept})
        plain: dict[str, Any] = result.safe_hook_presentation()["output"]
        has_mark = _holds_mark({key: value for key, value in plain.items() if key not in kept})
        return plain if has_mark else None

    # ── texts ──

    def _redact_texts(self, value: Any) -> Any:
        def visit(leaf: object, frames: Sequence[Frame]) -> object:
            if frames and frames[-1].keys is not None:
                self._redact_key(frames[-1])
            if isinstance(leaf, str) and not is_media(leaf, frames):
                return self._redact_own(leaf)
            return leaf

        return rebuild(value, visit, subject="", max_depth=_MAX_DEPTH, mark=True)

    def _redact_key(self, frame: Frame) -> None:
        assert frame.keys is not None
        key = frame.keys[frame.at]
        if isinstance(key, str) and (redacted := self._redact_own(key)) != key:
            # No two members may get the same name.
            frame.keys[frame.at] = (
                f"{redacted} ({frame.at})" if redacted in frame.keys else redacted
            )

    def _redact_own(self, text: str) -> str:
        if self._own is not None:
            text = self._own.sub(REDACTED, text)
        return redact_personal(text) if "pii-basic" in self._options.rules else text


def _put_back(source: Any, target: Any, names: Sequence[str]) -> Any:
    """Return the target with the source's value at a path, if both have the path."""
    if not names:
        return copy_json(source)
    name, rest = names[0], names[1:]
    if (
        not isinstance(source, dict)
        or not isinstance(target, dict)
        or name not in source
        or name not in target
    ):
        return target
    return {**target, name: _put_back(source[name], target[name], rest)}


def _is_json(payload: object) -> bool:
    waiting: list[object] = [payload]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            if not all(type(key) is str for key in value):
                return False
            waiting += value.values()
        elif type(value) is list:
            waiting += value
        elif type(value) not in _JSON_LEAVES:
            return False
    return True


def _holds_mark(value: object) -> bool:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and any(mark in value for mark in _MARKS):
            return True
    return False


_logger = logging.getLogger("amplifier.modules.hooks-redaction")

_MAX_SIZE_ON_LOOP = 25_000
"""The size above which payloads are searched in a worker thread, so as not to block the event loop.

For text alone, the limit could be four times as high. An element of a list counts as four
characters, but takes as long as sixteen or more.
"""
_TIMEOUT = 60.0


class RedactionHook:
    """The handler, which redacts the payload of events.

    Args:
        options: The configuration.
    """

    def __init__(self, options: RedactionOptions | None = None) -> None:
        self._options = options or read_redaction_options(None)
        self._redactor = Redactor(self._options)
        self._workers = Workers(threads=1, timeout=_TIMEOUT)
        self._note = {"applied": True, "rules": list(self._options.rules)}

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Redact one payload. An event with a payload that can't be redacted is denied."""
        try:
            if text_size(data, _MAX_SIZE_ON_LOOP) > _MAX_SIZE_ON_LOOP:
                redacted = await self._workers.run(
                    lambda _stop: self._redactor.redact(data), label=f"redaction of {event}"
                )
            else:
                redacted = self._redactor.redact(data)
        except ToolFailure as failure:
            return _withheld(event, str(failure))
        # The payload may contain third-party objects that fail when read.
        except Exception as error:
            _logger.exception("the payload of %r cannot be redacted", event)
            return _withheld(event, type(error).__name__)
        if redacted is None:
            return HookResult()
        return HookResult(action="modify", data={**redacted, "redaction": dict(self._note)})


def _withheld(event: str, reason: str) -> HookResult:
    return HookResult(
        action="deny",
        reason=f"{MODULE}: the payload of {event} could not be searched for secrets ({reason})",
    )


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], None]:
    """Start redacting events.

    Args:
        coordinator: The coordinator of the session.
        config: The configuration. See `RedactionOptions` for its keys.

    Returns:
        The cleanup, which unregisters the hook.

    Raises:
        PlanError: The configuration is wrong.
    """
    options = read_redaction_options(config)
    hook = RedactionHook(options)
    registered = [
        # The messages of a request are searched only if some other handler receives them.
        coordinator.hooks.register(
            event, hook, priority=options.priority, name=MODULE, on_failure="deny", on_demand=True
        )
        for event in options.events
    ]
    _logger.info("%d events are redacted by %s", len(registered), ", ".join(options.rules))

    def close() -> None:
        for unregister in registered:
            unregister()

    return close
