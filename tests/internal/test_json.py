"""JSON values: copying, canonical text, cutting, redacting, showing."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier._internal.json import (
    CIRCULAR,
    REDACTED,
    TOO_DEEP,
    canonical_dumps,
    copy_json,
    format_path,
    rebuild,
    redact_secrets,
    redact_text,
    sanitize_text,
    truncate_values,
    visible_text,
)
from amplifier.errors import ModelError

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=25,
)


class _Opaque:
    """A leaf of a class the code under test knows nothing about."""

    def __repr__(self) -> str:
        return "an opaque object"


_OPAQUE = _Opaque()
python_values = st.recursive(
    scalars | st.just(_OPAQUE) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=25,
)


def nested(depth: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = wrap(value)
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append({"back": value})
    return value


def self_twice() -> list[Any]:
    """Doubles with every level one unrolls it."""
    value: list[Any] = []
    value += [value, value]
    return value


def diamond(levels: int = 60) -> Any:
    """2**levels routes to one leaf, in `levels` lists."""
    value: Any = ["leaf"]
    for _ in range(levels):
        value = [value, value]
    return value


# ── copy ─────────────────────────────────────────────────────────────────────────────────────────


def containers_of(value: Any) -> list[Any]:
    found: list[Any] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            found.append(item)
            pending += item.values()
        elif isinstance(item, (list, tuple)):
            if isinstance(item, list):
                found.append(item)
            pending += item
    return found


def wide_diamond(row: Callable[[Any], Any]) -> Any:
    """1000**8 routes to one leaf, in eight lists of 1000 items."""
    value: Any = ["leaf"]
    for _ in range(8):
        value = [row(value)] * 1000
    return value


def seventeen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many dicts as a conversation has messages, which are copied in another way than a few."""
    return [deepcopy(rows[at % len(rows)]) for at in range(17)]


long_lists = st.lists(
    st.dictionaries(st.text(max_size=2), python_values), min_size=1, max_size=3
).map(seventeen)


@given(python_values | long_lists)
def test_copy_is_equal_and_unshared(value: Any) -> None:
    copied = copy_json(value)
    assert copied == value
    assert type(copied) is type(value)
    assert {id(c) for c in containers_of(copied)}.isdisjoint(id(c) for c in containers_of(value))


@given(python_values | long_lists)
def test_careful_copy_agrees_with_fast_one(value: Any) -> None:
    assert rebuild(value, subject="") == copy_json(value)


@pytest.mark.parametrize(
    "row",
    [lambda v: v, lambda v: {"k": v}, lambda v: {"a": 1, "k": {"k": v}}],
    ids=["list", "row", "deep"],
)
def test_endless_copy_keeps_size(row: Callable[[Any], Any]) -> None:
    value = wide_diamond(row)
    copied = copy_json({"x": value})["x"]
    assert copied is not value
    assert copied[0] is copied[999]


def test_containers_inside_tuples_do_not_leak_changes() -> None:
    value: dict[str, Any] = {"a": ({"b": [1]}, "x"), "c": [([],)]}
    copied = copy_json(value)
    copied["a"][0]["b"].append(2)
    copied["c"][0][0].append(2)
    assert value == {"a": ({"b": [1]}, "x"), "c": [([],)]}
    assert type(copied["a"]) is tuple


def test_named_tuples_stay_and_structs_become_tuples() -> None:
    point = namedtuple("point", "x y")
    copied = copy_json({"a": point([1], 2), "b": point(1, 2)})
    assert copied == {"a": point([1], 2), "b": point(1, 2)}
    assert type(copied["a"]) is point
    struct = time.gmtime(0)
    assert copy_json([struct])[0] is struct


def test_subclasses_arrive_plain_without_running_their_methods() -> None:
    class Loud(dict):
        def items(self) -> Any:
            raise AssertionError("ran foreign code")

        __iter__ = keys = values = copy = items

    class LoudList(list):
        def __iter__(self) -> Any:
            raise AssertionError("ran foreign code")

        copy = __iter__

    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    copied = copy_json(
        {"loud": Loud(a=[1]), "list": LoudList([{}]), "d": defaultdict(list, k=[1]), "o": ordered}
    )
    assert copied == {"loud": {"a": [1]}, "list": [{}], "d": {"k": [1]}, "o": {"b": 2, "a": 1}}
    assert {type(part) for part in copied.values()} == {dict, list}
    assert list(copied["o"]) == ["b", "a"]


def test_fake_dict_is_leaf() -> None:
    class Pretender:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return dict

    pretender = Pretender()
    assert copy_json({"a": pretender})["a"] is pretender
    assert redact_secrets({"a": pretender})["a"] is pretender
    with pytest.raises(ModelError, match=r"a: expected a JSON value, got Pretender"):
        canonical_dumps({"a": pretender})


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,)], ids=["list", "dict", "tuple"]
)
def test_copy_depth_limit_is_thousand(wrap: Callable[[Any], Any]) -> None:
    copied = copy_json(nested(1000, wrap))
    for _ in range(1000):
        copied = copied["k"] if isinstance(copied, dict) else copied[0]
    assert copied == "leaf"
    for depth in (1001, 10_000):
        with pytest.raises(ModelError, match="nested deeper than 1000 levels"):
            copy_json(nested(depth, wrap))


def test_depth_limit_ignores_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        with pytest.raises(ModelError, match="nested deeper"):
            copy_json({"x": nested(1000)})
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "make", [circular, self_twice, lambda: {"x": self_twice()}, lambda: [(self_twice(),)]]
)
def test_circular_value_is_refused_with_path(make: Callable[[], Any]) -> None:
    with pytest.raises(ModelError, match="contains itself") as caught:
        copy_json(make())
    assert caught.value.problems[0][0]


def test_path_leads_to_circle() -> None:
    with pytest.raises(ModelError) as caught:
        copy_json(circular())
    assert caught.value.problems == [("a[1].back", "contains itself")]


def test_many_routes_are_copied_without_growth() -> None:
    copied = copy_json({"x": diamond()})
    for _ in range(61):
        copied = copied["x"] if isinstance(copied, dict) else copied[0]
    assert copied == ["leaf"]


# ── canonical text ───────────────────────────────────────────────────────────────────────────────


@given(json_values)
def test_canonical_text_is_fixed_point(value: Any) -> None:
    text = canonical_dumps(value)
    again = json.loads(text)
    assert again == value
    assert canonical_dumps(again) == text


def test_canonical_text_is_compact_and_sorted() -> None:
    assert (
        canonical_dumps({"b": [1, 2.5, None, True], "a": ("é",)})
        == '{"a":["é"],"b":[1,2.5,null,true]}'
    )


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"a": [{"x": float("nan")}]}, "a[0].x", "nan is not a JSON number"),
        ([float("-inf")], "[0]", "-inf is not a JSON number"),
        ({"a": {1: 2}}, "a", "expected str keys, got the int key 1"),
        ({"a": "x\ud800"}, "a", "half a surrogate pair at character 1, which JSON cannot hold"),
        ({"\udfff": 1}, "", "half a surrogate pair at character 0, which JSON cannot hold"),
        ({"a b": object()}, "['a b']", "expected a JSON value, got object"),
        ({"a": {1, 2}}, "a", "expected a JSON value, got set"),
        (b"x", "", "expected a JSON value, got bytes"),
        (
            nested(251),
            f"{('[0]' * 250)[:200]}…{('[0]' * 250)[-80:]}",
            "nested deeper than 250 levels",
        ),
        (
            nested(10_000),
            f"{('[0]' * 250)[:200]}…{('[0]' * 250)[-80:]}",
            "nested deeper than 250 levels",
        ),
        (circular(), "a[1].back", "contains itself"),
    ],
)
def test_unserialisable_value_is_named_with_path(value: Any, path: str, problem: str) -> None:
    with pytest.raises(ModelError) as caught:
        canonical_dumps(value)
    assert caught.value.problems == [(path, problem)]
    assert str(caught.value).startswith("value cannot be written as JSON")


@pytest.mark.parametrize("value", [diamond(), tuple(diamond())], ids=["lists", "a tuple"])
def test_enormous_text_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match="uses the same parts so often"):
        canonical_dumps(value)


def test_too_many_digits_raise_own_error() -> None:
    with pytest.raises(ModelError, match="digits"):
        canonical_dumps([10**5000])


def test_non_identifiers_in_paths_are_quoted() -> None:
    assert format_path(["tools", 0, "config"], "$") == "$.tools[0].config"
    assert format_path(["a", "b c", object(), "x" * 100]) == f"a['b c'][object]['{'x' * 79}]"
    assert format_path([]) == ""


# ── text ─────────────────────────────────────────────────────────────────────────────────────────

_DROPPED = {*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0xD800, 0xE000)}


@pytest.mark.parametrize("around", ["", "é"], ids=["ascii", "other"])
def test_sanitizing_drops_controls_and_surrogates(around: str) -> None:
    for code in (*range(0x180), 0x200B, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x1F600):
        text = f"{around}a{chr(code)}b{around}"
        expected = f"{around}ab{around}" if code in _DROPPED else text
        assert sanitize_text(text) == expected, hex(code)


def test_visible_text_spells_out_escapes() -> None:
    assert visible_text("a\x1b[31m\u202eb\x9b\ud800\r") == r"a\x1b[31m\u202eb\x9b\ud800\r"
    assert visible_text("a\rb") == r"a\rb"
    assert visible_text("a\tb\nc") == "a\tb\nc"
    assert visible_text("a\tb\nc", multiline=False) == r"a\tb\nc"
    assert visible_text("\u200b\u2066\ufeff\U000e0041\xad") == r"\u200b\u2066\ufeff\U000e0041\xad"
    assert visible_text("plain, é, 日本, 🙂\ufe0f") == "plain, é, 日本, 🙂\ufe0f"


@given(
    st.text(alphabet=st.characters() | st.sampled_from("\x1b\x00\u202e\u200d\x7f\x9b")),
    st.booleans(),
)
def test_visible_text_is_harmless(text: str, multiline: bool) -> None:
    shown = visible_text(text, multiline=multiline)
    kept = "\n\t" if multiline else ""
    assert not any(
        (ord(c) < 32 and c not in kept) or 127 <= ord(c) < 160 or c in "\u202e\u200d\u200b\u2066"
        for c in shown
    )


def test_long_strings_are_cut_with_count() -> None:
    value = {"a": "x" * 190, "b": ["y" * 181, "z" * 180], "c": ("t" * 200,), "d": 5}
    assert truncate_values(value) == {
        "a": "x" * 180 + "... (truncated 10 chars)",
        "b": ["y" * 180 + "... (truncated 1 chars)", "z" * 180],
        "c": ("t" * 200,),
        "d": 5,
    }
    assert value["a"] == "x" * 190
    assert truncate_values("abc", 0) == "... (truncated 3 chars)"


@pytest.mark.parametrize("walk", [truncate_values, redact_secrets])
def test_deep_or_circular_parts_are_marked(walk: Callable[[Any], Any]) -> None:
    assert walk(circular()) == {"a": [1, {"back": CIRCULAR}]}
    assert TOO_DEEP in str(walk(nested(10_000)))
    assert walk(self_twice()) == [CIRCULAR, CIRCULAR]
    bottom = walk(diamond())
    for _ in range(60):
        bottom = bottom[0]
    assert bottom == ["leaf"]


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────

CANARY = "cAnArY0Value7XyZ"


@attrs.define
class _Settings:
    api_key: str = CANARY
    region: str = "eu"


@dataclass
class _Login:
    password: str = CANARY


class _Shows:
    def __repr__(self) -> str:
        return f"Client(token='{CANARY}', region='eu')"


SHAPES: dict[str, Any] = {
    "plain key": {"api_key": CANARY},
    "key in other case": {"API_KEY": CANARY},
    "header key": {"X-Api-Key": CANARY},
    "suffix": {"client_secret": CANARY},
    "camel case": {"accessToken": CANARY},
    "camel case with acronym": {"openAIAPIKey": CANARY},
    "long snake case": {"aws_secret_access_key": CANARY},
    "run together": {"dbpassword": CANARY},
    "numbered": {"API_KEY_2": CANARY, "token2": CANARY},
    "list under a key": {"a": {"b": [{"api_keys": [CANARY, "x"]}]}},
    "segment": {"password_hash": CANARY},
    "authorization": {"headers": {"Authorization": f"Bearer {CANARY}"}},
    "cookie": {"Set-Cookie": f"sid={CANARY}"},
    "container under a key": {"credentials": {"user": "u", "pass": CANARY}},
    "number under a key": {"pwd": 1234567},
    "tuple": ({"password": CANARY},),
    "pair": ("password", CANARY),
    "list of pairs": [["authorization", CANARY], ["accept", "*/*"]],
    "bytes headers": [(b"authorization", b"Bearer " + CANARY.encode())],
    "name and value": {"name": "Authorization", "value": CANARY},
    "environment entry": {"env": [{"key": "OPENAI_API_KEY", "value": CANARY}]},
    "set": {f"password={CANARY}"},
    "frozenset": frozenset({f"token={CANARY}"}),
    "dict key": {f"password={CANARY}": 1},
    "tuple as dict key": {("token", CANARY): 1},
    "bytes": b"password=" + CANARY.encode(),
    "bytearray": bytearray(b"password=" + CANARY.encode()),
    "JSON in a string": {"arguments": json.dumps({"clientSecret": CANARY})},
    "container in JSON in a string": json.dumps({"credentials": {"user": "u", "x": [CANARY]}}),
    "JSON in JSON": json.dumps({"body": json.dumps({"password": CANARY})}),
    "escaped JSON in text": f'log: {{\\"token\\": \\"{CANARY}\\"}} end',
    "duplicate keys in JSON": f'{{"password": "{CANARY}", "password": null}}',
    "repr of a dict": f"{{'secret': '{CANARY}'}}",
    "quotes inside quotes": f"""password="it's {CANARY}" next""",
    "a secret that begins like a variable": f"password=\"${CANARY}\" token='%{CANARY}' pwd=*{CANARY}",
    "unclosed quote": f'password="{CANARY}',
    "assignment": f"export AWS_SECRET_ACCESS_KEY={CANARY}",
    "YAML line": f"db:\n  password: {CANARY}\n  host: x",
    "prose with a secret": f"your password: {CANARY} and more",
    "query string": f"GET /x?access_token={CANARY}&a=1",
    "command line": f"mytool --api-key {CANARY} run",
    "argument list": ["curl", "--token", CANARY, "x"],
    "argument tuple": {"args": ("--password", CANARY)},
    "basic auth arguments": ["curl", "-u", f"me:{CANARY}", "x"],
    "header in a command": f"curl -H 'Authorization: Bearer {CANARY}' x",
    "connection string": f"Server=x;User=u;Password={CANARY};",
    "exception": ValueError(f"login failed for api_key='{CANARY}'"),
    "attrs object": _Settings(),
    "dataclass": {"a": [_Login()]},
    "object by its repr": _Shows(),
    "foreign mapping": UserDict(password=CANARY),
    "read-only mapping": MappingProxyType({"password": CANARY}),
    "ordered dict": OrderedDict(token=CANARY),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_secrets_are_hidden_in_every_shape(shape: Any) -> None:
    before = repr(shape)
    redacted = redact_secrets(shape)
    shown = f"{redacted!r} {redacted}"
    assert CANARY not in shown
    assert "1234567" not in shown
    assert REDACTED in shown
    assert redact_secrets(redacted) == redacted
    assert repr(shape) == before


_HEX = "0123456789abcdef" * 4
_MIXED = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zA0cD2fG4hJ6k"
_PEM = f"-----BEGIN RSA PRIVATE KEY-----\nMII{_MIXED}\n-----END RSA PRIVATE KEY-----"
FORMATS = {
    "OpenAI": f"sk-{_MIXED}",
    "OpenAI project": f"sk-proj-{_MIXED}_{_MIXED}",
    "Anthropic": f"sk-ant-api03-{_MIXED}-AA",
    "GitHub classic": f"ghp_{_MIXED[:36]}",
    "GitHub fine-grained": f"github_pat_{_MIXED[:22]}_{_MIXED}",
    "GitLab": f"glpat-{_MIXED[:20]}",
    "Slack bot": f"xoxb-123456789012-{_MIXED[:24]}",
    "Slack webhook": f"https://hooks.slack.com/services/T00000000/B00000000/{_MIXED[:24]}",
    "Discord webhook": f"https://discord.com/api/webhooks/123456789/{_MIXED}",
    "AWS access key": "AKIAIOSFODNN7EXAMPLE",
    "AWS temporary key": "ASIAIOSFODNN7EXAMPLE",
    "Google API": f"AIza{_MIXED[:35]}",
    "Google OAuth": f"ya29.{_MIXED}",
    "Google client secret": f"GOCSPX-{_MIXED[:28]}",
    "Hugging Face": f"hf_{_MIXED[:34]}",
    "npm": f"npm_{_MIXED[:36]}",
    "PyPI": f"pypi-{_MIXED}{_MIXED}",
    "Stripe": f"sk_live_{_MIXED[:24]}",
    "Stripe webhook": f"whsec_{_MIXED[:32]}",
    "SendGrid": f"SG.{_MIXED[:22]}.{_MIXED}",
    "Twilio": f"SK{_HEX[:32]}",
    "Telegram": f"123456789:AA{_MIXED[:33]}",
    "DigitalOcean": f"dop_v1_{_HEX}",
    "Databricks": f"dapi{_HEX[:32]}",
    "Shopify": f"shpat_{_HEX[:32]}",
    "Groq": f"gsk_{_MIXED}",
    "Azure storage": base64.b64encode(bytes(range(64))).decode(),
    "Azure application": f"abc8Q~{_MIXED[:34]}",
    "HashiCorp Vault": f"hvs.{_MIXED}",
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{_MIXED}",
    "bearer": f"Bearer {_MIXED[:20]}",
    "basic": f"Basic {base64.b64encode(b'user:correct horse').decode()}",
    "PEM": _PEM,
    "PEM in one line": _PEM.replace("\n", "\\n"),
    "PEM without end": _PEM[:60],
    "URL": "postgres://admin:hunter2@db.example/x",
    "URL without user": "redis://:hunter2@cache:6379/0",
    "URL with token": f"https://{_MIXED[:30]}@github.com/a/b.git",
    "age": f"AGE-SECRET-KEY-1{_MIXED.upper()}",
}


@pytest.mark.parametrize("secret", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("frame", ["{}", "see {} there", "({})", '"{}"', "x={}", "\n{}\n"])
def test_credential_formats_are_recognised(secret: str, frame: str) -> None:
    redacted = redact_text(frame.format(secret))
    assert REDACTED in redacted
    for part in (secret, _MIXED[:18], _HEX[:24], "hunter2", "EXAMPLE", "MIIaB3d"):
        assert part not in redacted
    assert redact_text(redacted) == redacted


HARMLESS = [
    {
        "tokens": 5,
        "max_tokens": 5,
        "token_count": 3,
        "input_tokens": 7,
        "tokenizer": "bpe",
        "eos_token": "</s>",
    },
    {
        "author": "x",
        "authority": "y",
        "authored_by": "z",
        "authors": ["a"],
        "secretary": "s",
        "passenger": "p",
    },
    {
        "key": "abc",
        "keys": ["a"],
        "primary_key": "id",
        "cache_key": "k",
        "public_key": "x",
        "session_id": "s",
    },
    {
        "api_key": None,
        "auth": True,
        "has_token": False,
        "signature": "thinking",
        "password_policy": "strong",
    },
    {"required": ["token", "password"], "api_key_env": "OPENAI_API_KEY", "secret_name": "prod/db"},
    {"name": "temperature", "value": "0.7"},
    {
        "arguments": '{"path": "a.txt", "max_tokens": 5}',
        "empty": "",
        "brace": "{not json",
        "nan": "[NaN]",
    },
    "The token: a short story by a bearer of news about basic information.",
    "Secret: he never knew. Your password: must have eight characters.",
    "The secret of key management is token rotation; bearer certificates are rare.",
    "sk-learn-contrib-package-name, risk-averse task-management-and-more-words, key-value-store-benchmarks",
    "see https://user@example.com/x, https://example.com:8080/a@b, git@github.com:a/b.git, mailto:me@example.com",
    "max_tokens: 5, author: x, token_count=7, Input tokens: 500, output tokens: 20",
    "2024-01-01T00:00:00Z 550e8400-e29b-41d4-a716-446655440000 d41d8cd98f00b204e9800998ecf8427e",
    "def login(token: str, password: str) -> None: token = get_token()",
    "password=None api_key=${KEY} token=<your token> --api-key $KEY token='***' pwd=\"%(pwd)s\" secret={{ x }}",
    "authorization: see section 4; oauth: a standard; the key: value pairs; a==b; C:\\Users\\x",
    ["--verbose", "x", "-o", "out"],
    ("left", "right"),
    b"\x00\xff\xfe binary",
    {1: 2.5, None: True},
]


@pytest.mark.parametrize("value", HARMLESS, ids=lambda value: str(value)[:30])
def test_ordinary_text_and_token_counts_stay(value: Any) -> None:
    assert redact_secrets(value) == value


@given(python_values)
def test_redaction_is_idempotent_and_never_fails(value: Any) -> None:
    once = redact_secrets(value)
    assert redact_secrets(once) == once


@given(st.text(), st.text(alphabet="abcdefghij0123456789", min_size=8, max_size=30), st.text())
def test_named_key_is_redacted_between_text(before: str, secret: str, after: str) -> None:
    shown = redact_text(f"{before}\napi_key={secret}1\n{after}")
    assert f"api_key={secret}1" not in shown


def test_only_secret_is_replaced() -> None:
    assert redact_text("İİİ Password=hunter2 İ") == f"İİİ Password={REDACTED} İ"
    assert redact_text("f(token=next_token(), x)") == "f(token=next_token(), x)"
    assert (
        redact_text("postgres://admin:hunter2@db/x?a=1") == f"postgres://admin:{REDACTED}@db/x?a=1"
    )
    assert redact_text("a; Password=x1;b") == f"a; Password={REDACTED};b"


def test_two_secret_keys_stay_two_entries() -> None:
    redacted = redact_secrets({f"ghp_{_MIXED[:36]}": 1, f"ghp_{_MIXED[1:37]}": 2, "x": 3})
    assert sorted(redacted.values()) == [1, 2, 3]
    assert _MIXED[1:30] not in str(redacted)


def test_caller_keys_replace_list() -> None:
    value = {"api_key": "a", "customer_number": "b", "Личное": "c"}
    assert redact_secrets(value, ["customer_number", "личное"]) == {
        "api_key": "a",
        "customer_number": REDACTED,
        "Личное": REDACTED,
    }


def test_objects_without_secret_keep_identity() -> None:
    redacted = redact_secrets({"a": _OPAQUE, "b": [len], "c": _Settings(api_key="")})
    assert redacted["a"] is _OPAQUE
    assert redacted["b"][0] is len
    assert redacted["c"] == {"api_key": REDACTED, "region": "eu"}


def test_unreadable_object_is_replaced() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    class Bottomless:
        def __repr__(self) -> str:
            return repr(self)

    assert redact_secrets([Broken(), Bottomless()]) == ["[UNREADABLE Broken]", TOO_DEEP]


def test_circular_objects_are_walked_once() -> None:
    @attrs.define
    class Node:
        left: Any = None
        right: Any = None

    node = Node()
    node.left = node.right = node
    assert redact_secrets(node) == {"left": CIRCULAR, "right": CIRCULAR}


# ── growth ───────────────────────────────────────────────────────────────────────────────────────


def seconds(action: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        action()
        best = min(best, time.process_time() - started)
    return best


PIECES = [
    "a", "A", "é", "İ", "@", "=", ":", "\\", "{", "[[],", "eyJ", "eyJaaaaaaaa.", "sk-", "sk-a ", "ghp_", "://",
    "://a:", "token", "token=", 'token="', "token='", "key", "a==", "1:AA", "1Q~", "basic ", "cookie: ",
    "password: ", "authorization: x\n", "--token ", "--", "hooks.slack.com/", "-----BEGIN PRIVATE KEY-----", "5-5-",
    "a1-", "aB3.", "aB3/", "aB3+aB3=", "%3D%25", "\\n", "AKIA", "a~b.", "0123456789abcdef.", "0123456789abcdef-",
    "aB3dE5gH7jK9mN1p+", "aB3dE5gH7jK9mN1p.", "token aB3dE5gH7jK9mN1p ", "acme_live_", "secret%3d", "curl -s ",
    "curl a -u b ", "<password>", "sshpass -p ",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_redaction_time_is_linear(piece: str) -> None:
    short, long = (piece * (size // len(piece)) for size in (10_000, 80_000))
    redact_text(short)
    # Eight times the text: a quadratic pattern would take sixty-four times as long, noise nowhere near it.
    assert seconds(lambda: redact_text(long)) < 30 * seconds(lambda: redact_text(short)) + 0.02


@pytest.mark.parametrize("clean", [sanitize_text, visible_text])
@pytest.mark.parametrize("piece", ["a", "a\x00", "\x1b", "é\x00", "\ud800", "\n"])
def test_cleaning_time_is_linear(clean: Callable[[str], str], piece: str) -> None:
    short, long = piece * 20_000, piece * 160_000
    assert seconds(lambda: clean(long)) < 30 * seconds(lambda: clean(short)) + 0.02


def test_walk_time_is_linear() -> None:
    short, long = (
        [{"k": [str(n), {"x": n}], "token": "t"} for n in range(size)] for size in (300, 2400)
    )
    for walk in (copy_json, redact_secrets, truncate_values, canonical_dumps):
        of_long, of_short = (seconds(partial(walk, value)) for value in (long, short))
        assert of_long < 30 * of_short + 0.02


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("curl -u bob:hunter7pass https://example.org", "hunter7pass"),
        ("curl -s --fail -u 'bob:p:w/d' https://example.org", "p:w/d"),
        ("sshpass -p hunterB7xyz ssh a@b", "hunterB7xyz"),
        ("sshpass -phunterB7xyz ssh a@b", "hunterB7xyz"),
        ("<password>hunterA8</password>", "hunterA8"),
        ("<db><Password>two words</Password></db>", "two words"),
    ],
)
def test_credentials_of_commands_and_markup_are_redacted(text, secret):
    assert secret not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "docker run -u 1000:1000 image",
        "rsync -u src:dst",
        "git push -u origin feature:main",
        "curl https://example.org | sort -u a:b",
        "<token>${TOKEN}</token>",
        "</password> closes <password>",
    ],
)
def test_lookalikes_stay(text):
    assert redact_text(text) == text
