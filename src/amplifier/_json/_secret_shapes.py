"""Finds secrets in text, by the shape of the secret or by the name before it.

Every pattern takes linear time: repetitions in a row share no characters, and what may run on is possessive, bounded or
consumed by the match. A heuristic errs; this one would rather hide too much in ``password=…`` than too little, and leaves
prose and counts of tokens alone. tests/modules/redaction_shapes measures both.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from functools import cache

from ._secret_names import SENSITIVE_KEYS, name_matcher

REDACTED = "[REDACTED]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What begins with one of these is a credential, if it goes on with more than lower-case words.
_PREFIXES = _words(
    "1//0 AGE-SECRET-KEY-1 AIza ATATT3 ATCTT3 CLOJARS_ GOCSPX- GR1348941 NRAK- NRII- PMAK- dckr_pat_ doo_v1_ dop_v1_ dor_v1_"
    " dp.ct. dp.pt. dp.st. fm2_ fo1_ gho_ ghp_ ghr_ ghs_ ghu_ github_pat_ glagent- glcbt- gldt- glffct- glft- glimt- gloas-"
    " glpat- glptt- glrt- glrtr- glsa_ glsoat- hvb. hvs. lin_api_ lsv2_pt_ lsv2_sk_ nvapi- pat-eu1- pat-na1- pcsk_ pplx-"
    " pscale_pw_ pscale_tkn_ pypi-AgEIcHlwaS5vcmc rk_live_ rk_test_ rubygems_ sbp_ sgp_ sk-ant- sk-or-v1- sk-proj- sk-svcacct- shpat_ shpca_ shppa_ shpss_ sntrys_"
    " sntryu_ sq0atp- sq0csp- tskey- tvly- whsec_ xkeysib- xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxp- xoxr- xoxs- ya29."
)
# These begin ordinary names as well (npm_config_…, secret_santa_…): the rest has to look random.
_COMMON_PREFIXES = _words(
    "AKCp EAAA LTAI SG. api_org_ csk- dapi e2b_ fc- figd_ fw_ glc_ gsk_ hf_ jina_ key- nfp_ npm_ ntn_ ops_ phc_ phx_ pypi- r8_"
    " rnd_ secret_ sk- sk_live_ sk_test_ v1.0- waka_ xai- xapp-"
)


def _prefixed() -> str:
    """All prefixes in one pattern: one character class to skip ahead to, then the cheap test for a word's start."""
    tails: dict[str, list[str]] = {}
    for prefix in sorted(_PREFIXES | _COMMON_PREFIXES, key=lambda prefix: (-len(prefix), prefix)):  # sk-ant- before sk-
        tails.setdefault(prefix[0], []).append(re.escape(prefix[1:]))
    branches = (rf"(?<={first})(?:{'|'.join(rest)})" for first, rest in tails.items())
    return rf"[{''.join(tails)}](?<![A-Za-z0-9].)(?P<prefix>{'|'.join(branches)})[\w%-]++(?:\.[\w%-]++)*+"


_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


def _has_digit(text: str) -> bool:
    return len(text.translate(_NO_DIGITS)) != len(text) if text.isascii() else any(map(str.isdigit, text))


def _token(found: re.Match[str]) -> str:
    # Words in a row ("sk-learn-contrib-…") are short or all lower case without a digit; random text is neither.
    text = found[0]
    if len(text) < 20 or (text.islower() and not _has_digit(text)):
        return text
    prefix = text[: found.end("prefix") - found.start()]
    return REDACTED if prefix not in _COMMON_PREFIXES or _looks_random(text[len(prefix) :]) else text


_RUNS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_HEXADECIMAL = re.compile(r"[0-9a-f]{24}")
# The average length of a run: 1.7 in random letters and digits, 2.1 in hexadecimal digits, 4 and more in names.
_LONGEST_RANDOM_RUN = 3.0
_LONGEST_RANDOM_RUN_OF_ONE_PART = 4.5


def _looks_random(text: str) -> bool:
    """Whether text is more than words and numbers: in random text, runs of one kind of character are short."""
    text = text[:256]
    if _HEXADECIMAL.search(text) or 0 < _average_run(text) < _LONGEST_RANDOM_RUN:
        return True
    return any(
        _has_digit(part)
        and (
            len(part) >= (10 if part.isdigit() else 24)
            or (len(part) >= 16 and _average_run(part) < _LONGEST_RANDOM_RUN_OF_ONE_PART)
        )
        for part in re.split(r"[_.-]", text)
    )


def _average_run(text: str) -> float:
    runs = _RUNS.findall(text)
    return sum(map(len, runs)) / len(runs) if runs else 0


def _userinfo(found: re.Match[str]) -> str:
    user, password = found[1], found[2]
    if password:
        if _PLACEHOLDER.fullmatch(password):
            return found[0]
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
        # The user, then everything up to the last @, unless it begins like a port; an image's digest follows an @, too.
        (
            ("://",),
            re.compile(
                r"://([^\s/?#@:\"'<>\[]{0,256}+)(?::((?!\d{1,5}[/?#])[^\s\"'<>]{1,256}))?@(?!sha256:)(?=[\w.$\[{-]|$)"
            ),
            _userinfo,
        ),
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
        (("eyJ",), re.compile(r"eyJ(?<![\w-]eyJ)[\w-]{8,}+\.{1,2}[\w-]{8,}+(?:\.[\w-]*+){0,4}", re.ASCII), REDACTED),
        (("==",), re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}==(?![A-Za-z0-9=])"), REDACTED),
        (("Q~",), re.compile(r"\b[\w.~-]{3}\dQ~[\w.~-]{31,}+", re.ASCII), REDACTED),
        ((":AA",), re.compile(r"\b\d{8,10}:AA[\w-]{33}", re.ASCII), REDACTED),
        # Options whose value is nothing but a credential.
        (
            ("curl",),
            re.compile(
                r"(\bcurl\s[^\r\n|;&]{0,200}?(?<=\s)(?:-[uU] ?|--(?:proxy-)?user[ =])[\"']?[\w.@+-]{1,64}+:)(?!//)[^\s\"']{1,256}+"
            ),
            rf"\1{REDACTED}",
        ),
        (("sshpass",), re.compile(r"(sshpass\s{1,3}-p\s{0,3}[\"']?)[^\s\"']{1,256}+"), rf"\1{REDACTED}"),
        # Discord's bots: an id in base64, a time stamp, a signature.
        (
            (".",),
            re.compile(r"[MNO](?<![\w-].)[\w-]{23,27}+\.[\w-]{6}\.[\w-]{27,40}+(?![\w-])", re.ASCII),
            REDACTED,
        ),
        ((".atlasv1.",), re.compile(r"\b\w{14}\.atlasv1\.[\w-]{60,70}+", re.ASCII), REDACTED),
        # Hashes of passwords, as crypt() and its successors write them.
        (
            ("$",),
            re.compile(r"\$(?:2[abxy]|5|6|y|apr1|argon2(?:id|i|d))\$[\w./$=,+-]{20,}+", re.ASCII),
            REDACTED,
        ),
        (("SK",), re.compile(r"SK(?<![A-Za-z0-9]SK)[0-9a-f]{32}(?![A-Za-z0-9])"), REDACTED),
    )


# A placeholder for a secret, as the whole value: $KEY, ${KEY}, $(cmd), <your key>, {key}, %(key)s, ***, [REDACTED], …
_PLACEHOLDER = re.compile(
    r"\$?|\$[A-Z_][A-Z0-9_]*|\$?\{[^{}]*\}|\{\{.*|\$\(.*|<.*|%\(\w*\)s|%s|\*+|\.+|\[REDACTED\].*|(?:os\.environ|env\.).*"
)
_NO_SECRETS = _words(
    "none null nil true false yes no undefined required optional missing invalid expired empty str string bytes int"
    " bool bearer basic token password secret enabled disabled inherit include omit same-origin"
)
_AUTH_VALUE = re.compile(r"(?:bearer|basic|digest|token|negotiate|apikey|aws4-hmac-sha256|key|bot|hawk) |\S{8,}$")


def _assigned(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """``password=hunter2``, ``"api_key": "…"``, ``token: …`` — decide by how it is written whether it is prose."""
    group = found.lastgroup or "bare"
    if group == "block":
        return _block(text, found)
    value, operator = text[found.start(group) : found.end(group)], found["operator"]
    if _PLACEHOLDER.fullmatch(value) or value.lower().rstrip(".") in _NO_SECRETS:
        return None
    if group == "bracketed":
        is_secret = len(value) >= 8 and _has_digit(value) and not _CODE_IN_BRACKETS.match(value)
        return found.span(group) if is_secret else None
    if group == "bare":
        after = text[found.end() : found.end() + 1]
        if after == "(" or (value.isdigit() and len(value) < 4):  # a call in program text; a count
            return None
        is_password = found[0].startswith(("pass", "pw"))
        if value.isalpha() and ":" in operator and not is_password:  # "jwt: enabled"; only passwords are plain words
            return None
        if value[0] == "/" and found[0].startswith("pwd"):  # the working directory
            return None
        tight = operator == "=" or '"' in operator or "'" in operator
        mixed = len(value) >= 20 or (len(value) >= 4 and _has_digit(value))
        if not (tight or mixed or not after or after in "\r\n,;)}]&\"'"):
            return None
        return found.start(group), _end_of_value(text, found.end(group))
    return found.span(group)


def _named_value(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """As `_assigned`, if the whole name is one of a secret: ``SECRET_KEY_BASE=…`` is, ``first_token: …`` is not."""
    start = found.start()
    while start > max(0, found.start() - _LONGEST_PREFIX) and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    name = text[start : found.start("operator")]
    return _assigned(text, found) if name_matcher(SENSITIVE_KEYS)(name) else None


_LONGEST_PREFIX = 40
_CODE_IN_BRACKETS = re.compile(r"[\[({](?:[^\])}]*[a-z0-9]-[a-z0-9]|[\d\s.,]*[\])}]|\w+[.\[(:])", re.IGNORECASE)
_TAIL = re.compile(r"[^\s\"'\\,;&<>(){}|\[\]=:]{2,256}+(?![=:])")


def _end_of_value(text: str, end: int) -> int:
    """Where a value without quotes ends: ``,;&'`` end it only if another name or nothing follows."""
    while text[end : end + 1] in (",", ";", "&", "'") and (tail := _TAIL.match(text, end + 1)):
        end = tail.end()
    return end


def _block(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """The lines of a YAML block scalar: those indented more than the line of its key, up to the first that is not."""
    start_of_line = text.rfind("\n", 0, found.start()) + 1
    before = text[start_of_line : found.start()]
    key_indent = len(before) - len(before.lstrip(" \t-"))  # the dash of a list item indents its keys
    end = start = found.end()
    while end < len(text):
        line_end = text.find("\n", end)
        line_end = len(text) if line_end < 0 else line_end
        line = text[end:line_end]
        if line.strip() and len(line) - len(line.lstrip(" \t")) <= key_indent:
            break
        end = min(line_end + 1, len(text))
    value = text[start:end]
    begin, stop = start + len(value) - len(value.lstrip()), start + len(value.rstrip())
    return None if begin >= stop or _PLACEHOLDER.fullmatch(text[begin:stop]) else (begin, stop)


def _header(_text: str, found: re.Match[str]) -> tuple[int, int] | None:
    value = found[2].partition(" ")[2].strip() or found[2].strip()
    if value in _NO_SECRETS or _PLACEHOLDER.fullmatch(value.upper()):  # the text searched is in lower case
        return None
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
    """``<password>…</password>``, ``<add key="Password" value="…"/>``."""
    value = text[found.start(2) : found.end(2)].strip()
    if not value or _PLACEHOLDER.fullmatch(value):
        return None
    return found.span(2) if name_matcher(SENSITIVE_KEYS)(text[found.start(1) : found.end(1)]) else None


def _always(_text: str, found: re.Match[str]) -> tuple[int, int] | None:
    return found.span(1)


def _option(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    value = text[found.start(2) : found.end(2)].rstrip("\"'")
    is_secret = name_matcher(SENSITIVE_KEYS)(found[1]) and not _PLACEHOLDER.fullmatch(value)
    return found.span(2) if is_secret else None


_VALUE = (
    r"""(?P<operator>[\\"']{0,3}[ \t]{0,40}+(?:=>|:=|=(?!=)|:)[ \t]{0,40}+(?:\r?\n[ \t]{0,40}+)?+)"""
    r"""(?:"(?P<double>(?:[^"\\\r\n]|\\.)*+)|'(?P<single>(?:[^'\\\r\n]|\\.|'')*+)|\\{1,7}["'](?P<escaped>[^"'\\\r\n]*+)"""
    r"""|[|>][-+0-9]{0,2}[ \t]{0,10}+\r?\n(?P<block>)|(?P<bracketed>[\[({][^\s"'\\<>]{4,}+)"""
    r"""|\\?(?P<bare>[^\s"'\\,;&<>(){}|\[\]]++))"""
)
_KEY_KINDS = _words(
    "api access account auth consumer decryption deploy encryption hmac license master private secret session signing ssh"
    " storage subscription"
)
_WHOSE_KEY = "|".join(rf"(?<={kind}.key)|(?<={kind}key)" for kind in sorted(_KEY_KINDS))
# "pass" and "pw" alone are words of prose and of test reports: they need a sign of a setting around them.
_SETTING = r"""(?=[\\"']{1,3}[ \t]{0,40}+[:=]|[ \t]{0,40}+=(?!=))"""
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
        ("pass", re.compile(rf"pass(?:{_SETTING}|(?<=[_.-]pass)|phrase|code){_VALUE}"), _named_value),
        ("passw", re.compile(rf"passw(?:or)?d[\w.-]{{0,24}}+{_VALUE}"), _named_value),
        ("pw", re.compile(rf"pw(?:(?<![a-z]pw){_SETTING}|(?<=[_.-]pw)){_VALUE}"), _assigned),
        ("secret", re.compile(rf"secret[\w.-]{{0,24}}+{_VALUE}"), _named_value),
        ("login", re.compile(r"login\s{1,4}\S{1,128}+\s{1,4}password\s{1,4}(\S{1,256}+)"), _always),
        ("connection", re.compile(rf"connection.?string{_VALUE}"), _assigned),
        ("credential", re.compile(rf"credentials?{_VALUE}"), _assigned),
        ("</", re.compile(r"<([a-z][\w:.-]{0,60}+)(?:\s[^<>]{0,200}+)?+>([^<]{1,4096}+)</"), _element),
        ("</key>", re.compile(r"<key>([^<]{1,80}+)</key>\s{0,20}+<string>([^<]{1,4096}+)</"), _element),
        ("value=", re.compile(r"(?:key|name)=\"([^\"<>]{1,80}+)\"\s{1,3}value=\"([^\"<>]{1,1024}+)"), _element),
        *((name, re.compile(name + _VALUE), _assigned) for name in ("cookie", "pwd", "jwt")),
        ("token", re.compile(rf"token{_VALUE}"), _named_value),
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
            # What is inside of the last secret is gone; judging it again would take quadratic time.
            span = judge(text, found) if found.start() >= at else None
            if span is not None and span[0] >= at:
                pieces += (text[at : span[0]], REDACTED)
                at = span[1]
        if pieces:
            text = "".join(pieces) + text[at:]
            lowered = _lower(text)
    return text


def _lower(text: str) -> str:
    """Lower case with every character in its place: only U+0130 would become two."""
    return text.replace("\u0130", "i").lower()
