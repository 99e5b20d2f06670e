"""Secrets taken out of values and text before they reach an event, a log line or a screen.

Three questions are asked: is the *name* that of a secret (``aws_secret_access_key``), is the *place* one (the value
beside ``"name": "Authorization"``, the word after ``--password``), does the *text* have the shape of one (``ghp_…``,
a JWT, ``://user:password@``)? Sits on `_walk`. Every pattern is linear: repetitions in a row share no characters, and
what may run on is possessive or consumed by the match. A heuristic errs; this one would rather hide too much in
``password=…`` than too little, and leaves prose and counts of tokens alone.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ._text import MAX_SHOWN_DEPTH
from ._walk import LEAVES, TOO_DEEP, Frame, rebuild

REDACTED = "[REDACTED]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ── names ────────────────────────────────────────────────────────────────────────────────────────

SENSITIVE_KEYS = _words(
    "access_key access_tokens account_key amz_signature api-key api_key api_keys apikey auth auth_tokens authorization"
    " bearer connection_string cookie cookies credential credentials encryption_key jwt master_key passphrase passwd"
    " password passwords private_key privatekey pwd refresh_tokens secret secret_id secret_key secrets"
    " shared_access_key shared_access_signature signing_key ssh_key storage_key subscription_key token"
)
"""Names of secrets. A key matches by its last words (``x-api-key``, ``accessToken``), case and separators aside."""

# These make a name sensitive at any position (password_hash), unless what follows only describes the secret.
_STRONG = frozenset(
    {("api", "key"), ("apikey",), ("password",), ("passwd",), ("passphrase",), ("secret",), ("private", "key")}
)
_DESCRIBES = _words(
    "age arn configured count dialog env error exists expires expiry field file format hint id label length manager max"
    " min mode name names path policy present prompt required reset rotation rules set status strength ttl type url"
    " version"
)
_TOKENIZER_WORDS = _words("bos cls end eos first last mask next pad per sep special start stop unk")
_NAME_WORDS = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]+|[A-Z]+?(?=[A-Z][a-z])|[0-9]+")
_LONGEST_NAME = 120


@lru_cache(maxsize=8)
def _name_matcher(keys: frozenset[str]) -> Callable[[str], bool]:
    exact = frozenset(key.lower() for key in keys)
    phrases = frozenset(tuple(word.lower() for word in _NAME_WORDS.findall(key)) for key in exact) - {()}
    longest = max(map(len, phrases), default=0)
    run_together = tuple(text for text in map("".join, phrases) if len(text) >= 5)  # "dbpassword", "accesstoken"

    @lru_cache(maxsize=2048)  # a program has few names, and asks about the same ones at every event
    def judged(name: str) -> bool:
        if name.lower() in exact:
            return True
        words = tuple(word.lower() for word in _NAME_WORDS.findall(name))
        for start in range(len(words)):
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                phrase, rest = words[start:end], words[end:]
                if phrase not in phrases:
                    continue
                if all(word.isdigit() for word in rest):
                    return not (phrase == ("token",) and start and words[start - 1] in _TOKENIZER_WORDS)
                if phrase in _STRONG and _DESCRIBES.isdisjoint(rest):
                    return True
        return "".join(words).endswith(run_together)

    def is_sensitive(name: str) -> bool:
        return len(name) <= _LONGEST_NAME and judged(name)

    return is_sensitive


# ── shapes in text ───────────────────────────────────────────────────────────────────────────────

_PREFIXES = _words(
    "AGE-SECRET-KEY-1 AIza ATATT3 ATCTT3 GOCSPX- LTAI NRAK- PMAK- SG. csk- dapi dckr_pat_ doo_v1_ dop_v1_ dp.pt."
    " figd_ fw_ gho_ ghp_ ghr_ ghs_ ghu_ github_pat_ glpat- glptt- glrt- glsa_ gsk_ hf_ hvb. hvs. key- lin_api_"
    " npm_ ntn_ nvapi- pplx- pscale_pw_ pscale_tkn_ pypi- r8_ rk_live_ rk_test_ rubygems_ sbp_ secret_ shpat_"
    " shpca_ shppa_ shpss_ sk- sk_live_ sk_test_ sntrys_ sntryu_ sq0atp- sq0csp- tskey- tvly- whsec_ xai- xapp-"
    " xoxa- xoxb- xoxe- xoxe. xoxp- xoxr- xoxs- ya29."
)


def _prefixed() -> str:
    """All prefixes in one pattern: one character class to skip ahead to, then the cheap test for a word's start."""
    tails: dict[str, list[str]] = {}
    for prefix in sorted(_PREFIXES):
        tails.setdefault(prefix[0], []).append(re.escape(prefix[1:]))
    branches = (rf"(?<={first})(?:{'|'.join(rest)})" for first, rest in tails.items())
    return rf"[{''.join(tails)}](?<![A-Za-z0-9].)(?:{'|'.join(branches)})[\w-]++(?:\.[\w-]++)*+"


_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


def _has_digit(text: str) -> bool:
    return len(text.translate(_NO_DIGITS)) != len(text) if text.isascii() else any(map(str.isdigit, text))


def _token(found: re.Match[str]) -> str:
    # Words in a row ("sk-learn-contrib-…") are short or all lower case without a digit; random text is neither.
    text = found[0]
    return text if len(text) < 20 or (text.islower() and not _has_digit(text)) else REDACTED


def _userinfo(found: re.Match[str]) -> str:
    user, password = found[1], found[2]
    if password:
        return f"://{user}:{REDACTED}@"
    return f"://{REDACTED}@" if len(user) >= 20 else found[0]


# Patterns with the case of their letters, tried on text that contains one of the marks: a fast substring search.
_Replacement = str | Callable[[re.Match[str]], str]


@cache  # compiled when first needed: importing the package should not wait for it
def _shapes() -> tuple[tuple[tuple[str, ...], re.Pattern[str], _Replacement], ...]:
    return (
        (
            ("PRIVATE KEY",),
            re.compile(r"(?s)-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[^-]{0,10}-----.*?(?:-----END [^-]{0,60}-----|\Z)"),
            REDACTED,
        ),
        (("://",), re.compile(r"://([^\s/?#@:\"'<>]{0,256}+)(?::([^\s/?#@\"'<>]{1,256}+))?@"), _userinfo),
        (
            ("hooks.slack.com/", "/api/webhooks/", "webhook.office.com/"),
            re.compile(r"(hooks\.slack\.com/[a-z]{1,20}/|/api/webhooks/|webhook\.office\.com/)[\w@/-]{16,}+", re.ASCII),
            rf"\1{REDACTED}",
        ),
        (("",), re.compile(_prefixed(), re.ASCII), _token),
        (
            ("IA", "A3T"),
            re.compile(r"A(?<![A-Za-z0-9]A)(?:KIA|SIA|BIA|3T[A-Z0-9])[A-Z0-9]{16}(?![A-Za-z0-9])"),
            REDACTED,
        ),
        (("eyJ",), re.compile(r"eyJ(?<![\w-]eyJ)[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+){0,4}", re.ASCII), REDACTED),
        (("==",), re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}==(?![A-Za-z0-9=])"), REDACTED),
        (("Q~",), re.compile(r"\b[\w.~-]{3}\dQ~[\w.~-]{31,}+", re.ASCII), REDACTED),
        ((":AA",), re.compile(r"\b\d{8,10}:AA[\w-]{33}", re.ASCII), REDACTED),
        # Options whose value is nothing but a credential.
        (
            ("curl",),
            re.compile(r"(\bcurl\s[^\r\n|;&]{0,200}?(?<=\s)-u ?[\"']?[\w.@+-]{1,64}+:)(?!//)[^\s\"']{1,256}+"),
            rf"\1{REDACTED}",
        ),
        (("sshpass",), re.compile(r"(sshpass\s{1,3}-p\s{0,3}[\"']?)[^\s\"']{1,256}+"), rf"\1{REDACTED}"),
        (("SK",), re.compile(r"SK(?<![A-Za-z0-9]SK)[0-9a-f]{32}(?![A-Za-z0-9])"), REDACTED),
    )


# A placeholder for a secret, as the whole value: $KEY, ${KEY}, $(cmd), <your key>, {key}, %(key)s, ***, [REDACTED], …
_PLACEHOLDER = re.compile(
    r"\$?|\$[A-Z_][A-Z0-9_]*|\$?\{[^{}]*\}|\{\{.*|\$\(.*|<.*|%\(\w*\)s|%s|\*+|\.+|\[REDACTED\].*|(?:os\.environ|env\.).*"
)
_NO_SECRETS = _words(
    "none null nil true false yes no undefined required optional missing invalid expired empty str string bytes int"
    " bool bearer basic token password secret"
)
_AUTH_VALUE = re.compile(r"(?:bearer|basic|digest|token|negotiate|apikey|aws4-hmac-sha256|key|bot|hawk) |\S{8,}$")


def _assigned(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """``password=hunter2``, ``"api_key": "…"``, ``token: …`` — decide by how it is written whether it is prose."""
    group = found.lastgroup or "bare"
    value, operator = text[found.start(group) : found.end(group)], found["operator"]
    if _PLACEHOLDER.fullmatch(value) or value.lower().rstrip(".") in _NO_SECRETS:
        return None
    if group == "bare":
        after = text[found.end() : found.end() + 1]
        if after == "(" or (value.isdigit() and len(value) < 4):  # a call in program text; a count
            return None
        tight = operator == "=" or '"' in operator or "'" in operator
        mixed = len(value) >= 20 or (len(value) >= 4 and _has_digit(value))
        if not (tight or mixed or not after or after in "\r\n,;)}]&\"'"):
            return None
    return found.span(group)


def _header(_text: str, found: re.Match[str]) -> tuple[int, int] | None:
    is_cookie = found[0].startswith("cookie")
    return found.span(2) if ("=" in found[2] if is_cookie else _AUTH_VALUE.match(found[2])) else None


def _scheme(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    value = text[found.start(1) : found.end(1)]
    if found[0].startswith("basic"):
        try:
            is_secret = b":" in b64decode(value + "=" * (-len(value) % 4), validate=True)
        except ValueError:
            is_secret = False
    else:
        is_secret = len(value) >= 24 or _has_digit(value) or not (value.islower() or value.istitle())
    return found.span(1) if is_secret else None


def _element(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """``<password>…</password>``."""
    value = text[found.start(1) : found.end(1)].strip()
    return None if not value or _PLACEHOLDER.fullmatch(value) else found.span(1)


def _option(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    value = text[found.start(2) : found.end(2)]
    is_secret = _name_matcher(SENSITIVE_KEYS)(found[1]) and not _PLACEHOLDER.fullmatch(value)
    return found.span(2) if is_secret else None


_VALUE = (
    r"""(?P<operator>[\\"']{0,3}\s{0,3}(?:=>|:=|=|:)\s{0,3})"""
    r"""(?:"(?P<double>(?:[^"\\\r\n]|\\.)*+)|'(?P<single>(?:[^'\\\r\n]|\\.)*+)|\\{1,7}["'](?P<escaped>[^"'\\\r\n]*+)"""
    r"""|(?P<bare>[^\s"'\\,;&<>(){}|\[\]]++))"""
)
_KEY_KINDS = _words("api access account secret private signing master encryption subscription")
_WHOSE_KEY = "|".join(rf"(?<={kind}.key)|(?<={kind}key)" for kind in sorted(_KEY_KINDS))
_HEADER_VALUE = r"""[\\"']{0,3} ?[:=] {0,3}([\\"']{0,3})([^\r\n"'\\]++)"""

# Patterns for any case. They search the text in lower case and begin with a literal, which the regex engine finds as
# fast as str.find() does; ignoring case in the pattern instead is thirty times slower.
_Judge = Callable[[str, "re.Match[str]"], "tuple[int, int] | None"]


@cache
def _named() -> tuple[tuple[str, re.Pattern[str], _Judge], ...]:
    return (
        *((name, re.compile(rf"{name}{_HEADER_VALUE}"), _header) for name in ("authorization", "cookie")),
        *((name, re.compile(rf"{name}\s{{1,4}}([a-z0-9._~+/-]{{8,}}+=*+)"), _scheme) for name in ("bearer", "basic")),
        (
            "--",
            re.compile(r"--(?<![\w-]--)([a-z0-9]{1,30}+(?:-[a-z0-9]{1,30}+){0,4}+)(?:\s{1,3}|=)[\"']?([^\s\"'-]\S*+)"),
            _option,
        ),
        (
            "key",
            re.compile(rf"key(?:{_WHOSE_KEY}|(?<=shared.access.key)|(?<=sharedaccesskey)|(?<=[?&]key)){_VALUE}"),
            _assigned,
        ),
        (
            "sig",
            re.compile(rf"sig(?:(?<=[?&]sig)|(?<=amz-sig)nature|(?<=access.sig)nature|(?<=accesssig)nature){_VALUE}"),
            _assigned,
        ),
        ("auth", re.compile(rf"auth(?<![a-z]auth)(?:orization)?{_VALUE}"), _assigned),
        ("pass", re.compile(rf"pass(?:(?<![a-z]pass)(?==)|w(?:or)?d|phrase){_VALUE}"), _assigned),
        ("connection", re.compile(rf"connection.?string{_VALUE}"), _assigned),
        ("credential", re.compile(rf"credentials?{_VALUE}"), _assigned),
        ("</", re.compile(r"<(?:[a-z]{0,20}password|passwd|secret|token|api_?key)>([^<]{1,256}+)</"), _element),
        *((name, re.compile(name + _VALUE), _assigned) for name in ("secret", "token", "cookie", "pwd", "jwt")),
    )


_SHORTEST_SECRET = 6  # nothing shorter than "pwd=x1" can have one of the shapes


def redact_text(text: str) -> str:
    """Replace what has the shape of a secret by ``[REDACTED]``; text without one comes back as it is."""
    if len(text) < _SHORTEST_SECRET:
        return text
    for marks, pattern, replacement in _shapes():
        for mark in marks:
            if mark in text:
                text = pattern.sub(replacement, text)
                break
    if "=" in text or ":" in text or " " in text or "</" in text:
        text = _redact_named(text)
    return text


def _redact_named(text: str) -> str:
    lowered = _lower(text)
    for mark, pattern, judge in _named():
        if mark not in lowered:
            continue
        pieces: list[str] = []
        at = 0
        for found in pattern.finditer(lowered):
            span = judge(text, found)
            if span is not None:
                pieces += (text[at : span[0]], REDACTED)
                at = span[1]
        if pieces:
            text = "".join(pieces) + text[at:]
            lowered = _lower(text)
    return text


def _lower(text: str) -> str:
    """Lower case with every character in its place: only U+0130 would become two."""
    return text.replace("\u0130", "i").lower()


# ── values ───────────────────────────────────────────────────────────────────────────────────────

_CONTAINERS = (dict, list, tuple, set, frozenset)
_NAME_FIELDS = ("name", "Name", "key", "Key", "header", "field", "variable")
_VALUE_FIELDS = frozenset({"value", "Value", "values", "val"})
_JSON_IN_JSON = 3  # how often a string may be JSON inside a string of JSON before it is treated as text


def redact_secrets(value: Any, keys: Iterable[str] = SENSITIVE_KEYS) -> Any:
    """Copy a value with its secrets replaced by ``[REDACTED]``.

    The value of a sensitive key is replaced, except None and booleans, which show whether it was set.
    Dicts (keys included), lists, tuples, sets, bytes and JSON inside strings are searched. Dataclass and attrs
    instances and foreign mappings become dicts, exceptions become text; another object stays, unless its ``repr``
    shows a secret: then the redacted ``repr`` takes its place. Circular or very deep parts become a marker.
    """
    return _Redaction(_name_matcher(frozenset(keys)), 0).run(value)


class _Redaction:
    """One pass over one value."""

    def __init__(self, is_sensitive: Callable[[str], bool], json_depth: int) -> None:
        self._is_sensitive_name = is_sensitive
        self._json_depth = json_depth
        self._names: dict[str, bool] = {}
        self._pair_lists: dict[int, bool] = {}
        self._new_keys: set[tuple[int, object]] = set()
        # One dict per object, so that the walk sees circles of objects; the objects are kept so that no id is reused.
        self._converted: dict[int, tuple[Any, Any]] = {}

    def run(self, value: Any) -> Any:
        return rebuild(value, self._visit, subject="", max_depth=MAX_SHOWN_DEPTH, containers=_CONTAINERS, mark=True)

    def _visit(self, value: Any, frames: Sequence[Frame]) -> Any:
        if frames:
            frame = frames[-1]
            secret = self._holds_secret(frame, frames)
            if frame.keys is not None:
                self._redact_key(frame)
            if secret and value is not None and value is not True and value is not False:
                return REDACTED.encode() if type(value) is bytes else REDACTED
        kind = type(value)  # not isinstance(): a test double may claim to be of any class
        if issubclass(kind, str):
            return self._redact_string(value)
        if issubclass(kind, (bytes, bytearray)):
            text = bytes(value).decode("latin-1")
            redacted = redact_text(text)
            return value if redacted == text else redacted.encode("latin-1")
        if kind in LEAVES or issubclass(kind, _CONTAINERS):
            return value
        identity = id(value)
        if identity not in self._converted:
            self._converted[identity] = (value, _readable(value))
        return self._converted[identity][1]

    def _sensitive(self, name: object) -> bool:
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        if not isinstance(name, str):
            return False
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = self._is_sensitive_name(name)
        return known

    def _holds_secret(self, frame: Frame, frames: Sequence[Frame]) -> bool:
        """Whether the name of the value looked at, or its neighbour in a pair or command line, gives it away."""
        at, values = frame.at, frame.values
        if frame.keys is not None:
            key = frame.keys[at]
            if self._sensitive(key):
                return True
            return key in _VALUE_FIELDS and any(self._sensitive(dict.get(frame.source, name)) for name in _NAME_FIELDS)
        if at == 0 or issubclass(frame.kind, (set, frozenset)):
            return False
        before = values[at - 1]
        if isinstance(before, str) and before.startswith("-"):
            option = before.lstrip("-")
            return self._sensitive(option) or (option in ("u", "user") and ":" in str(values[at]))
        if at != 1 or len(values) != 2 or not self._sensitive(before):
            return False
        return issubclass(frame.kind, tuple) or (len(frames) > 1 and self._lists_pairs(frames[-2].source))

    def _lists_pairs(self, source: Any) -> bool:
        """``[["authorization", "x"], …]`` is a list of headers; ``"required": ["token", "user"]`` is not one."""
        identity = id(source)
        if identity not in self._pair_lists:
            self._pair_lists[identity] = isinstance(source, (list, tuple)) and all(
                isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in source
            )
        return self._pair_lists[identity]

    def _redact_key(self, frame: Frame) -> None:
        assert frame.keys is not None
        key = frame.keys[frame.at]
        if isinstance(key, str):
            redacted: Any = redact_text(key)
        elif isinstance(key, (tuple, frozenset, bytes)):
            redacted = _Redaction(self._is_sensitive_name, self._json_depth).run(key)
        else:
            return
        if redacted is key or redacted == key:
            return
        if (id(frame), redacted) in self._new_keys:
            redacted = f"{redacted} ({frame.at})"  # two secrets must not become one entry
        self._new_keys.add((id(frame), redacted))
        frame.keys[frame.at] = redacted

    def _redact_string(self, text: str) -> str:
        opening = text.lstrip()[:1] if text else ""
        if opening in ("{", "[") and len(text) > 2 and self._json_depth < _JSON_IN_JSON:
            try:
                parsed = json.loads(text)
                redacted = _Redaction(self._is_sensitive_name, self._json_depth + 1).run(parsed)
                if redacted != parsed:
                    text = json.dumps(redacted, ensure_ascii=False)
            except (ValueError, RecursionError):  # no JSON after all, or a bomb: it is searched as text below
                pass
        return redact_text(text)


def _readable(value: Any) -> Any:
    """An object as something the walk can search."""
    kind = type(value)
    try:
        if issubclass(kind, BaseException):
            return f"{kind.__name__}: {redact_text(str(value))}"
        names = [field.name for field in getattr(kind, "__attrs_attrs__", ())] or list(
            getattr(kind, "__dataclass_fields__", ())
        )
        if names:
            return {name: getattr(value, name, None) for name in names}
        if issubclass(kind, Mapping):
            return dict(value)
        shown = repr(value)
        redacted = redact_text(shown)
    except RecursionError:
        return TOO_DEEP
    except Exception:  # noqa: BLE001 - the methods of a foreign object; what cannot be read cannot be shown to be harmless
        return f"[UNREADABLE {kind.__name__}]"
    return value if redacted == shown else redacted
