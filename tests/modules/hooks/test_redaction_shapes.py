"""How much redaction finds and how much it takes by mistake, measured on a table of secrets and one of harmless texts."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from amplifier._internal.json import REDACTED, redact_secrets, redact_text, redaction
from tests.modules.hooks.secret_rules import TABLE, python_pattern, seal, table

FOLDER = Path(__file__).parent / "redaction_shapes"
REQUIRED = 0.97

_ALPHABETS = {
    "m": string.ascii_letters + string.digits,
    "l": string.ascii_lowercase + string.digits,
    "u": string.ascii_uppercase + string.digits,
    "h": "0123456789abcdef",
    "d": string.digits,
    "b": string.ascii_letters + string.digits + "-_",
}
_WORDS = ("hunter", "Troubador", "correcthorse", "letmein", "Sommer", "qwertz")
_PLACE = re.compile(r"«(?:([mluhdb])(\d+)|w)»")


def _lines(name: str) -> list[str]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _unescaped(line: str) -> str:
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], line)


def _filled(template: str, source: random.Random) -> tuple[str, list[str]]:
    """The text with made-up values, and those values."""
    values: list[str] = []

    def make(found: re.Match[str]) -> str:
        if found[1] is None:
            value = f"{source.choice(_WORDS)}{source.randrange(10, 100)}{source.choice('!?*xZ')}"
        else:
            value = "".join(source.choices(_ALPHABETS[found[1]], k=int(found[2])))
            if (
                len(value) >= 6
            ):  # a token without any digit, or one that ends in a separator, is not what is measured
                value = (
                    f"{value[:2]}{source.randrange(10)}{value[3:-1]}{source.choice(string.digits)}"
                )
        values.append(value)
        return value

    return _unescaped(_PLACE.sub(make, template)), values


def _leaks(shown: str, values: list[str]) -> bool:
    """Whether six characters in a row of a secret are left, or all of a shorter one."""
    return any(
        value[start : start + 6] in shown
        for value in values
        if len(value) >= 4  # shorter parts appear in any text
        for start in range(max(1, len(value) - 5))
    )


SECRETS = _lines("secrets.txt")
HARMLESS = [_unescaped(line) for line in _lines("harmless.txt")]


def test_tables_are_large_and_distinct():
    assert len(set(SECRETS)) == len(SECRETS) >= 300
    assert len(set(HARMLESS)) == len(HARMLESS) >= 300


def _missed(seed: int) -> list[str]:
    source = random.Random(seed)
    missed = []
    for template in SECRETS:
        text, values = _filled(template, source)
        if _leaks(str(redact_secrets(text)), values):
            missed.append(f"{template}  →  {redact_secrets(text)}")
    return missed


@pytest.mark.parametrize("seed", range(5))
def test_recall_and_precision(seed):
    missed = _missed(seed)
    taken = [
        f"{text!r}  →  {redact_secrets(text)!r}"
        for text in HARMLESS
        if redact_secrets(text) != text
    ]
    found = len(SECRETS) - len(missed)
    recall, precision = found / len(SECRETS), found / (found + len(taken))
    report = "\n".join(
        [f"recall {recall:.3f}, precision {precision:.3f}", "missed:", *missed, "taken:", *taken]
    )
    assert recall >= REQUIRED, report
    assert precision >= REQUIRED, report


@pytest.mark.parametrize("seed", range(2))
def test_redacting_twice_changes_nothing_more(seed):
    source = random.Random(seed)
    for template in SECRETS:
        once = redact_secrets(_filled(template, source)[0])
        assert redact_secrets(once) == once
        assert REDACTED in once or template in "\n".join(_missed(seed))


@pytest.mark.slow
def test_repeated_shapes_take_linear_time():
    """Eight times the text: a quadratic pattern would take sixty-four times as long."""
    source = random.Random(1)
    for template in SECRETS:
        piece = _filled(template, source)[0]
        for unit in (piece, piece[:12]):
            short, long = (_seconds(unit * (size // len(unit))) for size in (2_000, 16_000))
            if long > 0.05:
                short, long = (
                    min(_seconds(unit * (size // len(unit))) for _ in range(3))
                    for size in (16_000, 128_000)
                )
            assert long < 30 * short + 0.05, unit


def _seconds(text: str) -> float:
    started = time.process_time()
    redact_text(text)
    return time.process_time() - started


# ── tokens of unknown services ──

UNKNOWN = _lines("unknown_services.txt")
# Where a token stands: by itself, named as a secret, or with characters of an encoding beside it.
_BARE = {
    "alone": "{}",
    "line": "first\n{}\nlast",
    "quoted": "the answer was '{}', he wrote",
    "json": '["{}", 1]',
    "call": "connect({})",
    "query": "https://api.example.com/items?limit=5&q={}&page=2",
    "log": "2026-11-17 08:00:01 INFO got {} from the server",
}
_NAMED = {
    "environment": "ACME_API_KEY={}",
    "export": "export ACME_TOKEN='{}'",
    "json": '{{"clientSecret": "{}"}}',
    "escaped json": '{{\\"access_token\\":\\"{}\\"}}',
    "yaml": "acme_secret: {}",
    "toml": 'api_key = "{}"',
    "query": "https://api.example.com/items?api_key={}&page=2",
    "encoded query": "next=%2Fitems%3Faccess_token%3D{}%26page%3D2",
    "header": "X-Acme-Auth-Token: {}",
    "bearer": "Authorization: Bearer {}",
    "option": "deploy --api-key {} --verbose",
    "log": "2026-11-17 08:00:01 INFO using the API key {} for the request",
    "prose": "The token for acme is {}.",
    "program": 'client = Client(secret_key="{}")',
}
_GLUED = {
    "escaped newline": "one\\n{}\\ntwo",
    "escaped character": "one\\u0026{}\\u0026two",
    "percent": "x%3D{}%26y",
    "percent twice": "x%253D{}%2526y",
    "colour": "\x1b[32m{}\x1b[0m",
}


@pytest.mark.parametrize(
    ("contexts", "is_named"),
    [(_BARE, False), (_NAMED, True), (_GLUED, False)],
    ids=["bare", "named", "glued"],
)
@pytest.mark.parametrize("seed", range(3))
def test_recall_of_tokens_of_unknown_services(contexts, is_named, seed):
    source = random.Random(seed)
    found, missed = 0, []
    for template in UNKNOWN:
        if template.startswith("«") and not is_named:
            continue
        for context in contexts.values():
            token, values = _filled(template, source)
            shown = redact_text(context.format(token))
            if _leaks(shown, values):
                missed.append(f"{context.format(token)}  →  {shown}")
            else:
                found += 1
    recall = found / (found + len(missed))
    assert recall >= 0.9, "\n".join([f"recall {recall:.3f}, missed:", *missed])


def test_unknown_services_are_unknown():
    assert [shape for shape in UNKNOWN if redaction._rules().starts.match(shape)] == []
    assert len(UNKNOWN) >= 50


@pytest.mark.parametrize(
    "template",
    [
        "acmePRIVATE «h40»",
        "acme_private=«m20»",
        "acmeACCESS: «h8»-«h4»-«h4»-«h4»-«h12»",
        "acmetoken-«h8»-«h4»-«h4»-«h4»-«h12»",
        "acmeSECRETkey «h64»",
        "acme SECRET «m8»-«m4»-«m4»-«m4»-«m12»",
        "acme TOKEN «u7»-«u7»-«u7»-«u7»",
        "acme ACCESS-«u7»-«u7»-«u7»-«u7»",
        "acmeSECRET-«m60»",
        "acme_key = «u12»",
        "acmekey=«l14»",
        "acme SECRET qhzlgzufaljduvojqoph",
        "acme KEY 82«d26»",
        "acme_key = u+«m8»_«m4»+«m4»-«m3»",
        "na1.«m48»+/«m40»",
    ],
)
def test_weak_randomness_right_after_keyword_suffices(template):
    missed = []
    for seed in range(20):
        text, values = _filled(template, random.Random(seed))
        shown = redact_text(text)
        if REDACTED not in shown or _leaks(shown, [*values, "qhzlgzufaljduvojqoph"]):
            missed.append(f"{text}  →  {shown}")
    assert len(missed) <= 2, "\n".join(
        missed
    )  # a random text of twelve characters may be as even as a name


@pytest.mark.parametrize(
    "text",
    [
        "sort_key=a1b2c3d4e5f6a7b8",
        "cache_key: user12345page67",
        "the key telecommunications",
        "access 2026-11-17T08:00:01.123456Z",
        "private my_service_version_2024_config",
        "token counts 12345678901234",
        "key eu-west-1-prod-db-2",
        "access my-app-config-file-2024",
    ],
)
def test_names_and_numbers_after_keyword_stay(text):
    assert redact_text(text) == text


@pytest.mark.parametrize("separator", ["+", "/", "=", ".", "-", "_", "%2B", "%2F"])
def test_token_rest_after_separator_is_redacted(separator):
    source = random.Random(1)
    for prefix in ("glc_", "ghp_", "acme_live_", "xoxd-"):
        parts = ["".join(source.choices(_ALPHABETS["m"], k=size)) + "9" for size in (24, 9, 11)]
        shown = redact_text(f"{prefix}{separator.join(parts)} and more")
        assert not _leaks(shown, parts), shown
        assert shown.endswith(" and more")


# ── texts without a secret ──


def _ordinary(source: random.Random) -> Iterator[str]:
    """Digests, ids and data, as logs, lock files and model answers contain them."""

    def mixed(size: int) -> str:
        return "".join(source.choices(_ALPHABETS["m"], k=size))

    for _ in range(30):
        number = source.getrandbits(512)
        data = base64.b64encode(source.randbytes(source.choice([150, 250, 400, 2000]))).decode()
        yield f"{number % 16**32:032x}  archive.tar.gz"
        yield f"commit {number % 16**40:040x}\nparent {number % 16**39:040x}"
        yield f"image: registry/app@sha256:{number % 16**64:064x}"
        yield f"session {uuid.UUID(int=number % 16**32)} opened, trace_id={number % 16**31:032x}"
        yield f'"integrity": "sha512-{base64.b64encode(source.randbytes(64)).decode()}"'
        yield f"example.org/x/net v0.1.0 h1:{base64.b64encode(source.randbytes(32)).decode()}"
        yield f"pkg/module.py,sha256={base64.urlsafe_b64encode(source.randbytes(32)).decode().rstrip('=')},1234"
        yield f'{{"id": "toolu_01{mixed(22)}", "call_id": "call_{mixed(24)}", "response": "resp_{number % 16**48:048x}"}}'
        yield f"chatcmpl-{mixed(29)} finished, request id req_{mixed(24)}"
        yield f"GET /v1/items/{number % 16**24:024x}/parts 200 12 ms, ETag: {number % 16**32:032x}"
        yield f'<img src="data:image/png;base64,{data}">'
        yield json.dumps({"type": "image", "source": {"media_type": "image/png", "data": data}})
        yield "\n".join(data[at : at + 64] for at in range(0, len(data), 64))
        yield f"-----BEGIN CERTIFICATE-----\n{data}\n-----END CERTIFICATE-----"
        yield f"traceparent: 00-{number % 16**32:032x}-{number % 16**16:016x}-01"


@pytest.mark.parametrize("seed", range(3))
def test_few_ordinary_texts_are_changed(seed):
    texts = [*_ordinary(random.Random(seed)), *HARMLESS]
    assert len(texts) >= 500
    changed = [
        f"{text[:200]!r}  →  {redact_text(text)[:200]!r}"
        for text in texts
        if redact_text(text) != text
    ]
    assert len(changed) <= 0.02 * len(texts), "\n".join(changed)


# ── the table ──


def _table() -> dict:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def test_table_names_origin_and_licence():
    assert "gitleaks" in _table()["origin"]
    assert "Permission is hereby granted" in TABLE.with_name("gitleaks-license.txt").read_text(
        encoding="utf-8"
    )
    assert len(_table()["prefixes"]) >= 100


def test_table_matches_generating_program():
    """Whoever changes the program or the table has to run the program on the rules again."""
    assert _table()["seal"] == seal(_table()["prefixes"], _table()["services"])


def test_package_import_reads_no_table():
    program = "import amplifier, amplifier._internal.json.redaction as r; print(r._rules.cache_info().currsize)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "0"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (r"(LTAI(?i)[a-z0-9]{20})", r"(LTAI(?i:[a-z0-9]{20}))"),
        (r"(?i)a|b", r"(?i:a)|(?i:b)"),
        (r"[(?i)]x(?i:y)\z", r"[(?i)]x(?i:y)\Z"),
        (r"pat[[:alnum:]]{14}", r"pat[a-zA-Z0-9]{14}"),
    ],
)
def test_patterns_are_translated_from_gitleaks(theirs, ours):
    assert python_pattern(theirs) == ours


def test_rule_becomes_prefix_or_service_name():
    operator = r"""(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}"""
    end = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
    rules = [
        {"id": "one", "regex": rf"\b(one_(?:live|test)_[a-z]{{20}}){end}"},
        {"id": "two", "regex": r"\bTWO[A-Z]{20,}\b"},
        {"id": "three", "regex": rf"(?i)[\w.-]{{0,50}}?(?:three){operator}([a-f0-9]{{32}}){end}"},
    ]
    made = table(rules, "revision")
    assert made["prefixes"] == ["TWO", "one_live_", "one_test_"]
    assert made["services"] == ["three"]
