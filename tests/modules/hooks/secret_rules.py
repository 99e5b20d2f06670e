"""Derives ``src/amplifier/_internal/json/secret_rules.json`` from the rules of gitleaks.

Usage: ``python -m tests.modules.hooks.secret_rules path/to/gitleaks.toml revision``. The rules are facts about other people's tokens: how they
begin, and which service's name is before those that have no shape of their own. The table keeps these facts, not the programs around them:

- ``prefixes``: literal beginnings of tokens, from the leading literals of each pattern. The redaction decides itself where a token ends.
- ``services``: names of services, from rules of the form "name, operator, value".
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import sys
import tomllib
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from tests._support.tree import ROOT

TABLE = ROOT / "src" / "amplifier" / "_internal" / "json" / "secret_rules.json"
LICENSE = TABLE.with_name("gitleaks-license.txt")
# What the redaction has its own code for: names of secrets, headers, private keys, JWTs, webhooks, credentials in URLs.
_OWN = frozenset(
    {
        "curl-auth-header",
        "curl-auth-user",
        "freemius-secret-key",
        "generic-api-key",
        "gitlab-session-cookie",
        "hashicorp-tf-password",
        "jwt",
        "jwt-base64",
        "kubernetes-secret-yaml",
        "microsoft-teams-webhook",
        "nuget-config-password",
        "pkcs12-file",
        "private-key",
        "sidekiq-sensitive-url",
        "slack-webhook-url",
        "sourcegraph-access-token",
    }
)
_NAME_THEN_VALUE = re.compile(
    r"^(.*?)\(\?:\[ \\t\\w\.-\]\{0,20\}\).*?\[\\x60'\"\\s=\]\{0,5\}(.*)$", re.DOTALL
)
_AROUND = (r"""(?:[\x60'"\s;]|\\[nr]|$)""", r"""(?:[\x60'"\s;]|\\[nr]|$|\b)""", r"(?:[^\w-]|\z)")
_SEPARATORS = frozenset("_-.~+")


def python_pattern(text: str) -> str:
    """The pattern in Python's syntax: flags in the middle apply to the rest of their group, and become groups of their own."""
    text = text.replace("[[:alnum:]]", "[a-zA-Z0-9]").replace(r"\z", r"\Z")
    pieces: list[str] = []
    open_flags = [0]  # per group: how many groups for flags it has to close
    in_class = False
    at = 0
    while at < len(text):
        size = 2 if text[at] == "\\" else 1
        piece = text[at : at + size]
        if in_class or size == 2:
            in_class = in_class and piece != "]"
        elif text.startswith("(?i)", at):
            piece, size = "(?i:", 4
            open_flags[-1] += 1
        elif piece == "[":
            in_class = True
        elif piece == "(":
            open_flags.append(0)
        elif piece == ")":
            piece += ")" * open_flags.pop()
        elif piece == "|" and open_flags[-1]:
            piece = ")" * open_flags[-1] + "|" + "(?i:" * open_flags[-1]
        pieces.append(piece)
        at += size
    return "".join(pieces) + ")" * open_flags.pop()


def beginnings(tree: Any) -> tuple[list[str], bool]:
    """The literal beginnings of what a parsed pattern matches, and whether that is all of it."""
    found = [""]
    for code, value in tree:
        if code is _constants.AT:
            continue
        more, whole = _one(code, value)
        if not more or len(more) * len(found) > 64:
            return found, False
        found = ["".join(pair) for pair in itertools.product(found, more)]
        if not whole:
            return found, False
    return found, True


def _one(code: Any, value: Any) -> tuple[list[str], bool]:
    if code is _constants.LITERAL:
        return [chr(value)], True
    if (
        code is _constants.IN
        and len(value) <= 3
        and all(kind is _constants.LITERAL for kind, _ in value)
    ):
        return [chr(character) for _, character in value], True
    if code is _constants.SUBPATTERN:
        return beginnings(value[-1])
    if code is _constants.BRANCH:
        parts = [beginnings(branch) for branch in value[1]]
        return [text for texts, _ in parts for text in texts], all(whole for _, whole in parts)
    if code is _constants.MAX_REPEAT and value[:2] == (0, 1):
        texts, whole = beginnings(value[2])
        return ["", *texts], whole
    return [], False


def _token_beginnings(text: str) -> list[str]:
    """The literal beginnings of the token that a rule's pattern finds, without what is around it."""
    for around in _AROUND:
        text = text.replace(around, "")
    text = python_pattern(
        re.sub(r"^\(\?:\^\|.*?\]\)|\(\?:\$\|.*?\]\)$", "", text.replace(r"\b", ""))
    )
    return beginnings(_parser.parse(text))[0]


def seal(prefixes: list[str], services: list[str]) -> str:
    """A digest of the table and of this program: it changes if either is changed without the other."""
    program = ast.dump(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    return hashlib.sha256(json.dumps([program, prefixes, services]).encode()).hexdigest()


def table(rules: list[dict[str, Any]], revision: str) -> dict[str, Any]:
    prefixes: set[str] = set()
    services: set[str] = set()
    for rule in rules:
        if rule["id"] in _OWN:
            continue
        named = _NAME_THEN_VALUE.match(rule["regex"])
        if named is not None:
            names = (
                named[1]
                .replace(r"(?i)[\w.-]{0,50}?", "")
                .replace(r"(?i:[\w.-]{0,50}?", "")
                .replace(r"[\w.-]{0,50}?", "")
            )
            texts, _ = beginnings(_parser.parse(python_pattern(names)))
            services.update(text.lower().rstrip("_-.,") for text in texts)
        starts = _token_beginnings(rule["regex"] if named is None else named[2])
        is_marked = all(len(start) > 2 and _SEPARATORS & {*start} for start in starts)
        if is_marked or (named is None and all(len(start) > 1 for start in starts)):
            prefixes.update(starts)
    services = {
        name for name in services if len(name) > 2 and not name.startswith(tuple(services - {name}))
    }
    return {
        "origin": f"gitleaks, config/gitleaks.toml of revision {revision}; MIT License, see {LICENSE.name}",
        "derived by": "tests/modules/hooks/secret_rules.py",
        "seal": seal(sorted(prefixes), sorted(services)),
        "prefixes": sorted(prefixes),
        "services": sorted(services),
    }


def main() -> None:
    rules = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rules"]
    written = json.dumps(table(rules, sys.argv[2]), indent=1)
    TABLE.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
