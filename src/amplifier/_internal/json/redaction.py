"""Redaction of secrets in values and text, before they reach an event, a log or a screen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ._text import MAX_SHOWN_DEPTH
from ._walk import LEAVES, TOO_DEEP, Frame, rebuild

# A secret is detected in four ways. It has the name of a secret, such as ``aws_secret_access_key``,
# but not ``max_tokens``. It is in the place of one: the value next to ``"name": "Authorization"``,
# or the word after ``--password``. It has the shape of a known credential. Or it is random where a
# credential is likely: after a prefix such as ``acme_live_``, or near a word such as "token".
#
# Shapes, names and words are data: ``secret_shapes.toml``, and ``secret_rules.json``, which is
# derived from the rules of gitleaks. The heuristic redacts too much rather than too little in
# ``password=…``, and leaves prose, digests, ids and counts of tokens alone.
# tests/modules/hooks/test_redaction_shapes.py measures both.
#
# The time is linear in the size of the text: adjacent repetitions share no characters, and
# unbounded ones are possessive or consumed by the match. Tokens are searched only in runs of at
# least 16 letters and digits, which a byte search finds.

REDACTED = "[REDACTED]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ── names ──

SENSITIVE_KEYS = _words(
    "access_key access_tokens account_key amz_signature api-key api_key api_keys apikey auth"
    " auth_key auth_tokens authorization bearer connection_string consumer_key cookie cookies"
    " credential credentials decryption_key deploy_key encryption_key hmac_key jwt license_key"
    " master_key pass passcode passphrase passwd password passwords private_key privatekey pw pwd"
    " refresh_tokens secret secret_id secret_key secrets session_key shared_access_key"
    " shared_access_signature signing_key ssh_key storage_key subscription_key token"
)
"""Names of secrets.

A key matches by its last words, as in ``x-api-key`` and ``accessToken``. Case and separators are
ignored.
"""

# These make a name sensitive at any position, as in password_hash, unless the following word only
# describes the secret.
_STRONG = frozenset(
    {
        ("api", "key"),
        ("apikey",),
        ("password",),
        ("passwd",),
        ("passphrase",),
        ("secret",),
        ("private", "key"),
    }
)
_DESCRIBES = _words(
    "age arn configured count dialog env error exists expires expiry field file format hint id"
    " label length manager max algorithm min mode name names path policy present prompt required"
    " reset rotation rules set status strength ttl type url version"
)
_TOKEN_KINDS = _words("bos cls end eos first last mask next pad per sep special start stop unk")
_PASS_KINDS = _words(
    "boarding day first full high last low multi next one render season second single third two"
)
_NO_NAMES = frozenset(
    {(word, "token") for word in _TOKEN_KINDS} | {(word, "pass") for word in _PASS_KINDS}
)
_NAME_WORDS = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]+|[A-Z]+?(?=[A-Z][a-z])|[0-9]+")
_MAX_NAME = 120


def _name_words(text: str) -> list[str]:
    return [word.lower() for word in _NAME_WORDS.findall(text)]


@lru_cache(maxsize=8)
def _name_matcher(keys: frozenset[str]) -> Callable[[str], bool]:
    exact = frozenset(key.lower() for key in keys)
    phrases = frozenset(tuple(_name_words(key)) for key in exact) - {()}
    longest = max(map(len, phrases), default=0)
    # This covers names without separators, such as "dbpassword" and "accesstoken".
    joined = tuple(text for text in map("".join, phrases) if len(text) >= 5)

    # This is cached because a program has few names and checks the same ones at every event.
    @lru_cache(maxsize=2048)
    def is_sensitive(name: str) -> bool:
        if name.lower() in exact:
            return True
        words = tuple(_name_words(name))
        for start in range(len(words)):
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                phrase, rest = words[start:end], words[end:]
                if phrase not in phrases:
                    continue
                if all(word.isdigit() for word in rest):
                    return (*words[start - 1 : start], *phrase) not in _NO_NAMES
                if phrase in _STRONG and _DESCRIBES.isdisjoint(rest):
                    return True
        return "".join(words).endswith(joined)

    return is_sensitive


# ── values ──

_CONTAINERS = (dict, list, tuple, set, frozenset)
_NAME_FIELDS = ("name", "Name", "key", "Key", "header", "field", "variable")
_VALUE_FIELDS = frozenset({"value", "Value", "values", "val"})
_NESTED = (dict, list, tuple, frozenset, bytes)
_MEDIA_STARTS = ("iVBORw0KGg", "/9j/", "R0lGOD", "UklGR", "JVBERi0")  # PNG, JPEG, GIF, WebP, PDF
_BASE64 = re.compile(r"[A-Za-z0-9+/]*+={0,2}")
# JSON in a string in JSON is parsed to this depth. Below it, it is treated as text.
_MAX_JSON_IN_JSON = 3


def redact_secrets(value: Any, keys: Iterable[str] = SENSITIVE_KEYS) -> Any:
    """Copy a value with its secrets replaced by ``[REDACTED]``.

    The value of a sensitive key is replaced, except None and booleans, which show whether it was
    set. Dicts with their keys, lists, tuples, sets, bytes and JSON inside strings are searched.
    Dataclass and attrs instances and other mappings become dicts, and exceptions become text. Any
    other object is kept, unless its ``repr`` contains a secret. Then the redacted ``repr`` replaces
    it. Circular or very deep parts become a marker.
    """
    return _Redaction(_name_matcher(frozenset(keys)), 0).run(value)


def is_media(value: Any, frames: Sequence[Frame]) -> bool:
    """Return whether a text is an image or a PDF in base64, which a redaction would break.

    Its place in a block, its prefix and its alphabet decide. All other text is searched.
    """
    frame = frames[-1] if frames else None
    return (
        type(value) is str
        and frame is not None
        and frame.keys is not None
        and frame.keys[frame.at] == "data"
        and dict.get(frame.source, "type") == "base64"
        and value.startswith(_MEDIA_STARTS)
        and _BASE64.fullmatch(value) is not None
    )


class _Redaction:
    """One pass over one value."""

    def __init__(self, is_sensitive: Callable[[str], bool], json_depth: int) -> None:
        self._is_sensitive = is_sensitive
        self._json_depth = json_depth

    def run(self, value: object) -> Any:
        return rebuild(
            value,
            self._visit,
            subject="",
            max_depth=MAX_SHOWN_DEPTH,
            containers=_CONTAINERS,
            mark=True,
        )

    def _visit(self, value: Any, frames: Sequence[Frame]) -> Any:
        if frames:
            is_secret = self._is_secret(value, frames)
            if (keys := frames[-1].keys) is not None:
                key = keys[at := frames[-1].at]
                redacted = redact_text(key) if type(key) is str else self._nested(key)
                # The number keeps two redacted keys from becoming one.
                if redacted != key:
                    keys[at] = f"{redacted} ({at})"
            if is_secret:
                return REDACTED.encode() if type(value) is bytes else REDACTED
            if is_media(value, frames):
                return value
        # Don't use isinstance(), because an object may report any class.
        kind = type(value)
        if issubclass(kind, str):
            return self._redact_string(value)
        if issubclass(kind, (bytes, bytearray)):
            text = bytes(value).decode("latin-1")
            redacted = redact_text(text)
            return value if redacted == text else redacted.encode("latin-1")
        return value if kind in LEAVES or issubclass(kind, _CONTAINERS) else _readable(value)

    def _nested(self, value: Any) -> Any:
        if type(value) not in _NESTED:
            return value
        return _Redaction(self._is_sensitive, self._json_depth + 1).run(value)

    def _names_secret(self, name: object) -> bool:
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        return isinstance(name, str) and len(name) <= _MAX_NAME and self._is_sensitive(name)

    def _is_secret(self, value: object, frames: Sequence[Frame]) -> bool:
        """Return whether the name of a value, or the value before it, marks it as a secret."""
        frame = frames[-1]
        at, values = frame.at, frame.values
        if value is None or value is True or value is False:
            return False
        if frame.keys is not None:
            key = frame.keys[at]
            # {"pass": 12, "fail": 3} is a report of tests.
            if self._names_secret(key):
                return not (type(value) in (int, float) and str(key).lower() == "pass")
            return key in _VALUE_FIELDS and any(
                self._names_secret(dict.get(frame.source, name)) for name in _NAME_FIELDS
            )
        if at == 0 or issubclass(frame.kind, (set, frozenset)):
            return False
        before = values[at - 1]
        if isinstance(before, str) and before.startswith("-"):
            option = before.lstrip("-")
            return self._names_secret(option) or (option in ("u", "user") and ":" in str(value))
        # ("password", "x"), [["authorization", "x"], …], but not "required": ["token", "user"]
        is_pair = issubclass(frame.kind, tuple) or (len(frames) > 1 and frames[-2].keys is None)
        return at == 1 and len(values) == 2 and is_pair and self._names_secret(before)

    def _redact_string(self, text: str) -> str:
        may_be_json = text.lstrip()[:1] in ("{", "[") and len(text) > 2
        if may_be_json and self._json_depth < _MAX_JSON_IN_JSON:
            # Text that is not JSON, or nested too deeply, is searched as text.
            with suppress(ValueError, RecursionError):
                parsed = json.loads(text)
                redacted = self._nested(parsed)
                if redacted != parsed:
                    text = json.dumps(redacted, ensure_ascii=False)
        return redact_text(text)


def _readable(value: Any) -> Any:
    """Return an object in a form that can be searched."""
    kind = type(value)
    try:
        if issubclass(kind, BaseException):
            return f"{kind.__name__}: {redact_text(str(value))}"
        names = [field.name for field in getattr(kind, "__attrs_attrs__", ())]
        names = names or list(getattr(kind, "__dataclass_fields__", ()))
        if names:
            return {name: getattr(value, name, None) for name in names}
        if issubclass(kind, Mapping):
            return dict(value)
        shown = repr(value)
        redacted = redact_text(shown)
    except RecursionError:
        return TOO_DEEP
    # Methods of a foreign object may raise. An object that cannot be read may contain a secret.
    except Exception:  # noqa: BLE001
        return f"[UNREADABLE {kind.__name__}]"
    return value if redacted == shown else redacted


# ── text ──


class _Rules:
    """The tables, which are read on first use to keep the import of the package fast."""

    def __init__(self) -> None:
        # It is slow to import because it compiles its own patterns.
        import tomllib  # noqa: PLC0415

        folder = Path(__file__).parent
        own = tomllib.loads((folder / "secret_shapes.toml").read_text(encoding="utf-8"))
        table = json.loads((folder / "secret_rules.json").read_text(encoding="utf-8"))
        self.key_words, self.id_words = _words(own["key_words"]), _words(own["id_words"])
        self.near_words = _words(own["near_words"]).union(table["services"])
        self.starts = _one_of(_words(own["prefixes"]).union(table["prefixes"]))
        self.placeholder = re.compile(own["names"]["placeholder"])
        self.shapes = [
            (row["marks"], re.compile(row["pattern"], re.ASCII), row.get("kept", "") + REDACTED)
            for row in own["shapes"]
        ]
        names = own["names"]
        assigned = [(word, word + names["assigned"]) for word in names["words"].split()]
        rows = (*names["rows"], *assigned)
        self.names = [(mark, re.compile(pattern)) for mark, pattern in rows]


_rules = cache(_Rules)


def _one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern with one branch per first character, the longest text first."""
    rests: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda text: (-len(text), text)):
        rests.setdefault(text[0], []).append(re.escape(text[1:]))
    branches = [f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(branches))


def redact_text(text: str) -> str:
    """Replace secrets in a text with ``[REDACTED]``, and return other text unchanged."""
    if len(text) < _MIN_SECRET:
        return text
    for marks, pattern, replacement in _rules().shapes:
        if any(mark in text for mark in marks):
            text = pattern.sub(replacement, text)
    if "=" in text or ":" in text or " " in text or "%" in text or "</" in text:
        text = _redact_named(text)
    return _redact_tokens(text) if len(text) >= _RUN else text


# No shape fits a text shorter than "pwd=x1".
_MIN_SECRET = 6
_DIGIT = re.compile(r"[0-9]")

# ── names in text ──

_REFERENCE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]+")
_NAME_BEFORE = re.compile(r"[\w .-]{0,40}\Z")


def _redact_named(text: str) -> str:
    lowered = _lower(text)
    for mark, pattern in _rules().names:
        if mark not in lowered:
            continue
        spans: list[tuple[int, int]] = []
        done = 0
        for match in pattern.finditer(lowered):
            # Matches inside the last secret are skipped. Checking them would take quadratic time.
            if match.start() >= done and (span := _secret_in(text, match)) is not None:
                spans.append(span)
                done = span[1]
        if spans:
            text = _without(text, spans, REDACTED)
            lowered = _without(lowered, spans, REDACTED.lower())
    return text


def _without(text: str, spans: list[tuple[int, int]], replacement: str) -> str:
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    return replacement.join(text[start:end] for start, end in zip(starts, ends, strict=True))


def _lower(text: str) -> str:
    """Return a text with its ASCII letters in lower case. Every character keeps its position."""
    if text.isascii():
        return text.lower()
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def _secret_in(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return the span of the value in a match, or None if it is not a secret."""
    kind, groups = match.lastgroup or "", match.re.groupindex
    start, end = match.span(kind)
    value, name = text[start:end], ""
    if "name" in groups:
        name = text[match.start("name") : match.end("name")]
    elif "operator" in groups:
        before = _NAME_BEFORE.search(text[max(0, match.start() - 40) : match.start()])
        name = (before[0] if before else "") + text[match.start() : match.start("operator")]
    if name and not _name_matcher(SENSITIVE_KEYS)(name) and not _is_key(name, value):
        return None
    if _rules().placeholder.fullmatch(value):
        return None
    if kind != "bare":
        return start, end
    operator, after = match["operator"], text[end : end + 1]
    if _is_harmless(value, operator, match[0]):
        return None
    is_tight = operator == "=" or '"' in operator or "'" in operator
    is_mixed = len(value) >= 20 or (len(value) >= 4 and _DIGIT.search(value))
    return (start, end) if is_tight or is_mixed or not after or after in "\r\n,;)}]&\"'" else None


def _is_harmless(value: str, operator: str, text: str) -> bool:
    """Return whether an unquoted value after the name of a secret is not a secret itself."""
    # The value is a count.
    if value.isdigit() and len(value) < 4:
        return True
    # "jwt: enabled". Only passwords are plain words.
    if value.isalpha() and ":" in operator and not text.startswith(("pass", "pw")):
        return True
    # The value is the working directory.
    if value[0] == "/" and text.startswith("pwd"):
        return True
    # The value refers to a variable, as in auth=auth and api_key=self.api_key.
    return _REFERENCE.fullmatch(value) is not None and _name_matcher(SENSITIVE_KEYS)(value)


def _is_key(name: str, value: str) -> bool:
    """Return whether the value of a name such as ``acme_key`` is a secret.

    The name may also be that of a key in a table.
    """
    words = _name_words(name)
    return (
        _ONE_VALUE.fullmatch(value) is not None
        and _DIGIT.search(value) is not None
        and _may_be_random(value, _SHORT_KEY)
        and len(name) > 3
        and words[-1].endswith("key")
        and _rules().id_words.isdisjoint(words)
    )


# ── tokens ──

_SHORT_KEY = 10
_ONE_VALUE = re.compile(r"[\w.+/=-]{10,64}", re.ASCII)
# Hardly any word has so many letters.
_LONG_WORD = 20
# Endings of names such as acmetoken and acmeSECRETkey.
_GLUED = ("key", "token", "secret")
# Minimum length of random text. A shorter secret is detected by its name.
_RUN = 16
# Number of characters before a token that are searched for words.
_BEFORE = 48
# Data such as images, unless it begins like a token.
_DATA = re.compile(r"[\w+/=-]{512,}+", re.ASCII)
_FLAT = bytes(
    97 if chr(code) in "_-" or (code < 128 and chr(code).isalnum()) else 32 for code in range(256)
)
# Runs of one kind of character have an average length of 1.7 in random letters and digits, 2.1 in
# hexadecimal digits, 2.5 in digits and letters of one case, and at least 4 in names.
_MAX_RANDOM_RUN = 3.0
# The limit for text with digits, after a word that names a secret.
_MAX_MIXED_RUN = 4.0
_JOINS = frozenset("/@#:-+.\n")
_CODED = frozenset("%\\.~+/")
_PART = re.compile(r"[A-Za-z0-9]+")
_CLASSES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_HEXADECIMAL = re.compile(r"[0-9a-f]{16,}|[0-9A-F]{16,}|[0-9]+")
_UUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}(?![0-9A-Za-z])")
# These letters before a token belong to an encoding: \n, \u0026, %3D, %253D, or the end of a
# terminal colour.
_GLUE = re.compile(
    r"(?<=\\)(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrtbfv])"
    r"|(?<=%)(?:25)?[0-9A-Fa-f]{2}|(?<=[\[;])\d{1,3}m|"
)
_DOTTED = re.compile(r"(?:[A-Za-z0-9][\w-]{0,15}[.~]){1,2}\Z", re.ASCII)
# A token may continue after these characters. A word after one of them does not belong to it.
_MORE = re.compile(
    r"(?:(?:[+/~=]{1,2}|%2[BbFf]|\.(?=[\w-]{6}))"
    r"(?!(?:[A-Z]?[a-z]{4,}|[A-Z]{4,})(?![\w-]))[\w-]{1,512}+)*+(?:(?:=|%3[Dd]){1,3}(?!\w))?+",
    re.ASCII,
)


def _redact_tokens(text: str) -> str:
    flat = text.encode("latin-1", "replace").translate(_FLAT)
    run = b"a" * _RUN
    spans: list[tuple[int, int]] = []
    at = 0
    while (start := flat.find(run, at)) >= 0:
        if (data := _DATA.match(text, start)) and not _rules().starts.match(text, start):
            at = data.end()
            continue
        at = flat.find(b" ", start)
        at = len(text) if at < 0 else at
        begin = _token(text, start, at, spans[-1][1] if spans else 0)
        if begin is not None:
            more = _MORE.match(text, at)
            at = more.end() if more else at
            spans.append((begin, at))
    return _without(text, spans, REDACTED) if spans else text


def _token(text: str, start: int, end: int, done: int) -> int | None:
    """Return the start of the token in or around a run of characters, or None."""
    # Most such runs are digests.
    if _HEXADECIMAL.fullmatch(text, start, end) and text[start - 1 : start] not in _CODED:
        is_count = text[start:end].isdigit() and end - start < _LONG_WORD
        return start if not is_count and _suggest_secret(_words_before(text, start)) else None
    start = begin = _after_glue(text, start)
    if text[start - 1 : start] in (".", "~") and (
        before := _DOTTED.search(text[max(done, start - 30) : start])
    ):
        begin = _after_glue(text, start - len(before[0]))
    for at in {begin, start}:
        known = _rules().starts.match(text, at)
        if known and end - at >= 20 and _looks_random(text[known.end() : end]):
            return at
    return _random_token(text, begin, start, end)


def _after_glue(text: str, at: int) -> int:
    glue = _GLUE.match(text, at)
    return glue.end() if glue else at


def _looks_random(text: str) -> bool:
    """Return whether the text after a known prefix is more than words and numbers."""
    text = text[:256]
    parts = _PART.findall(text)
    is_mixed = len(_CLASSES.findall(text)) > 1.5 * len(parts)
    if is_mixed and (_DIGIT.search(text) or _average_run(text) < _MAX_RANDOM_RUN):
        return True
    if len(text) >= 20 and text.isalnum() and _DIGIT.search(text):
        return True
    return any(_randomness(part) or (len(part) >= 10 and part.isdigit()) for part in parts)


def _is_one_case(text: str) -> bool:
    return text in (text.lower(), text.upper())


def _average_run(text: str) -> float:
    runs = _CLASSES.findall(text)
    return sum(map(len, runs)) / len(runs) if runs else 0


def _randomness(text: str) -> int:
    """Return 0 for names and numbers, 1 for possible digests and ids, and 2 for random text."""
    if len(text) < _RUN or text.isdigit():
        return 0
    if _HEXADECIMAL.fullmatch(text):
        return 1
    run, is_one_case = _average_run(text), _is_one_case(text)
    if not _DIGIT.search(text):
        return 2 if len(text) >= 24 and not is_one_case and run < 2.2 else 0
    if run < (_MAX_RANDOM_RUN if is_one_case else 2.5):
        return 2
    return 1 if run < 3.5 else 0


def _may_be_random(text: str, min_length: int = _RUN) -> bool:
    """Return whether a text near the word for a secret may be random.

    The text may be shorter, more even or in more parts than random text elsewhere.
    """
    parts = _PART.findall(text)
    joined = "".join(parts)
    if len(joined) < min_length or (joined.isalpha() and _is_one_case(joined)):
        return len(parts) == 1 and len(joined) >= _LONG_WORD
    limit = _MAX_RANDOM_RUN if joined.isalpha() else _MAX_MIXED_RUN
    return not joined.isdigit() and _average_run(joined) < limit


def _random_token(text: str, begin: int, start: int, end: int) -> int | None:
    """Return the start of a random token, or None.

    Random text is a token if it has a prefix, is near the word for a secret, or stands alone.
    """
    before, ids = _words_before(text, begin), _rules().id_words
    uuid = _UUID.search(text, start, end)
    parts = (part for part in _PART.finditer(text, start, end) if _randomness(part[0]))
    random = uuid or next(parts, None)
    # Less random text suffices right after the word. The word may be the first part, as in
    # ACCESS-1A2B3C4-5D6E7F8-9G0H1J2.
    if random is None:
        first = _PART.match(text, start)
        if first and any(map(_is_key_word, _name_words(first[0]))):
            return first.end() if _may_be_random(text[first.end() : end]) else None
        return begin if _may_be_random(text[start:end]) and _suggest_secret(before[-2:]) else None
    is_random, size = not uuid and _randomness(random[0]) > 1, end - random.start()
    words = [word for word in _name_words(text[begin : random.start()]) if not word.isdigit()]
    if words and text[begin].isalpha() and ids.isdisjoint(words):
        if any(map(_is_key_word, words)):
            return begin
        if size >= 20 and not uuid and ids.isdisjoint(before[-3:]):
            return begin
    around = {text[begin - 1 : begin], text[end : end + 1]}
    is_alone = (
        is_random
        and not words
        and 32 <= size <= 128
        and _JOINS.isdisjoint(around)
        and ids.isdisjoint(before[-1:])
    )
    return begin if is_alone or _suggest_secret(before) else None


def _is_key_word(word: str) -> bool:
    return word in _rules().key_words or word.endswith(_GLUED)


def _words_before(text: str, begin: int) -> list[str]:
    """Return the last words before a position in its line, after the last slash."""
    line = text[max(0, begin - _BEFORE) : begin]
    line = line[max(line.rfind("\n"), line.rfind("/")) + 1 :]
    return [word.lower() for word in _NAME_WORDS.findall(line)[-8:] if not word.isdigit()][-5:]


def _suggest_secret(words: list[str]) -> bool:
    """Return whether the words name a secret, and not an id.

    The word right before that of a secret and all words after it must not be those of ids.
    """
    ids = _rules().id_words
    for at in range(len(words) - 1, -1, -1):
        if words[at] in ids:
            return False
        if words[at] in _rules().near_words or words[at].endswith(_GLUED):
            return at == 0 or words[at - 1] not in ids
    return False
