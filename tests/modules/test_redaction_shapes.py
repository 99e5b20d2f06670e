"""How much redaction finds and how much it takes by mistake, measured on a table of secrets and one of harmless texts."""

from __future__ import annotations

import random
import re
import string
import time
from pathlib import Path

import pytest

from amplifier._json import REDACTED, redact_secrets, redact_text

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
            if len(value) >= 6:  # a token without any digit, or one that ends in a separator, is not what is measured
                value = f"{value[:2]}{source.randrange(10)}{value[3:-1]}{source.choice(string.digits)}"
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


def test_the_tables_are_large_and_without_repetitions():
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
    taken = [f"{text!r}  →  {redact_secrets(text)!r}" for text in HARMLESS if redact_secrets(text) != text]
    found = len(SECRETS) - len(missed)
    recall, precision = found / len(SECRETS), found / (found + len(taken))
    report = "\n".join([f"recall {recall:.3f}, precision {precision:.3f}", "missed:", *missed, "taken:", *taken])
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
def test_every_shape_repeated_takes_time_in_proportion_to_the_text():
    """Eight times the text: a quadratic pattern would take sixty-four times as long."""
    source = random.Random(1)
    for template in SECRETS:
        piece = _filled(template, source)[0]
        for unit in (piece, piece[: len(piece) // 2], piece[:12]):
            short, long = (_seconds(unit * (size // len(unit))) for size in (4_000, 32_000))
            if long > 0.05:
                short, long = (
                    min(_seconds(unit * (size // len(unit))) for _ in range(3)) for size in (32_000, 256_000)
                )
            assert long < 30 * short + 0.05, unit


def _seconds(text: str) -> float:
    started = time.process_time()
    redact_text(text)
    return time.process_time() - started
