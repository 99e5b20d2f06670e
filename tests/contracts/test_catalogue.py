"""The clauses: numbered without gaps, each one decidable sentence, and none of the checklists' items forgotten."""

from __future__ import annotations

import re

import pytest

from amplifier.contracts import COMMON_CLAUSES, CONTRACTS, clauses_for
from amplifier.models import ModuleType

LETTERS = {
    "orchestrator": "O",
    "context": "C",
    "provider": "P",
    "tool": "T",
    "hook": "H",
    "resolver": "R",
}
TABLES = {"A": COMMON_CLAUSES} | {
    LETTERS[kind]: contract.clauses for kind, contract in CONTRACTS.items()
}
CLAUSES = {clause.id: clause for clauses in TABLES.values() for clause in clauses}

# Every item of the validation checklists of the five contract documents, and where it went. An item may have become
# stricter on the way, never laxer.
CHECKLISTS: list[tuple[ModuleType, str, str, list[str]]] = [
    ("tool", "required", "implements name, description, execute", ["T1"]),
    ("tool", "required", "mount() with entry point", ["A1", "A3"]),
    ("tool", "required", "returns ToolResult from execute()", ["T5"]),
    ("tool", "required", "handles errors gracefully", ["T6"]),
    ("tool", "recommended", "JSON schema via get_schema()", ["T11"]),
    ("tool", "recommended", "validates input before processing", ["T12"]),
    ("tool", "recommended", "logs operations at appropriate levels", ["T13"]),
    ("tool", "recommended", "registers observability events", ["A19"]),
    ("provider", "required", "implements all five members", ["P1"]),
    ("provider", "required", "mount() with entry point", ["A1", "A3"]),
    ("provider", "required", "preserves all content block types", ["P6"]),
    ("provider", "required", "reports Usage", ["P5"]),
    ("provider", "required", "returns ChatResponse from complete()", ["P4"]),
    ("provider", "recommended", "graceful degradation on missing config", ["P15"]),
    ("provider", "recommended", "validates tool call and result sequences", ["P16"]),
    ("provider", "recommended", "supports debug flags", ["P17"]),
    ("provider", "recommended", "registers a cleanup", ["P18"]),
    ("provider", "recommended", "registers observability events", ["A19"]),
    ("hook", "required", "handler(event, data) -> HookResult", ["H1"]),
    ("hook", "required", "mount() with entry point", ["A1", "A3"]),
    ("hook", "required", "valid HookResult on all paths", ["H3"]),
    ("hook", "required", "handles exceptions gracefully", ["H4"]),
    ("hook", "recommended", "cleanup unregisters handlers", ["H9"]),
    ("hook", "recommended", "priority 10 to 90", ["H10"]),
    ("hook", "recommended", "logs registration", ["H11"]),
    ("hook", "recommended", "configuration for enabled events", ["H12"]),
    ("hook", "recommended", "registers custom events", ["A19"]),
    ("orchestrator", "required", "implements execute", ["O1", "O3"]),
    ("orchestrator", "required", "mount() with entry point", ["A1", "A3"]),
    ("orchestrator", "required", "emits standard events", ["O7", "O8"]),
    (
        "orchestrator",
        "required",
        "handles HookResult actions",
        ["O15", "O16", "O17", "O18", "O19", "O20"],
    ),
    ("orchestrator", "required", "manages context", ["O9", "O10", "O11", "O12"]),
    ("orchestrator", "recommended", "supports multiple providers", ["O25"]),
    ("orchestrator", "recommended", "max iterations limit", ["O23"]),
    ("orchestrator", "recommended", "handles provider errors gracefully", ["O21", "O26"]),
    ("orchestrator", "recommended", "registers custom events", ["A19"]),
    ("orchestrator", "recommended", "supports streaming", ["O27"]),
    ("context", "required", "implements all five methods", ["C1"]),
    ("context", "required", "mount() with entry point", ["A1", "A3"]),
    ("context", "required", "handles compaction internally", ["C7"]),
    ("context", "required", "keeps tool pairs", ["C9"]),
    ("context", "required", "conversation order", ["C10"]),
    ("context", "required", "compaction is not destructive", ["C6"]),
    ("context", "recommended", "token counting", ["C16"]),
    ("context", "recommended", "emits compaction events", ["C17"]),
    ("context", "recommended", "keeps system messages", ["C11"]),
    ("context", "recommended", "safe under concurrent access", ["C15"]),
    ("context", "recommended", "configurable thresholds", ["C18"]),
    ("resolver", "required", "returns ModuleSource", ["R3"]),
    ("resolver", "required", "raises ModuleNotFoundError on failure", ["R4"]),
    ("resolver", "required", "no side effects beyond resolution", ["R7"]),
    ("resolver", "required", "deterministic", ["R6"]),
    ("resolver", "recommended", "a helpful message", ["R8"]),
]


def test_types_have_published_mount_points() -> None:
    assert {kind: contract.mount_point for kind, contract in CONTRACTS.items()} == {
        "orchestrator": "orchestrator",
        "context": "context",
        "provider": "providers",
        "tool": "tools",
        "hook": "hooks",
        "resolver": "module-source-resolver",
    }


@pytest.mark.parametrize("letter", TABLES)
def test_clauses_are_numbered_without_gaps(
    letter: str,
) -> None:
    clauses = TABLES[letter]
    assert [clause.id for clause in clauses] == [
        f"{letter}{number}" for number in range(1, len(clauses) + 1)
    ]
    assert {clause.level for clause in clauses} == {"required", "recommended"}


SOURCES = re.compile(
    r"L([1-9]|10)"
    r"|(module|tool|provider|hook|orchestrator|context) contracts?, Required"
    r"|module source contract, (Invariants|Protocol)"
    r"|contract clarifications: (every module|tools|providers|hooks|orchestrators|contexts|verdicts)"
)
"""What can demand a clause."""


def test_every_clause_is_complete() -> None:
    for clause in CLAUSES.values():
        assert re.fullmatch(r"[A-Za-z].*[^.]\.", clause.text), clause
        assert "\n" not in clause.text, clause
        assert ". " not in clause.text, clause
        assert clause.law is None or re.fullmatch(r"L([1-9]|10)", clause.law), clause
        assert re.fullmatch(r"[A-Z].*[^.]\.", clause.hint), clause
        assert all(name.isidentifier() for name in clause.look_at), clause
        assert clause.source, clause
        assert clause.level == "recommended" or SOURCES.fullmatch(clause.source), clause


def test_clause_texts_are_distinct() -> None:
    texts = [clause.text for clause in CLAUSES.values()]
    assert len(set(texts)) == len(texts)


def test_laws_resting_on_modules_have_clauses() -> None:
    assert {clause.law for clause in CLAUSES.values()} - {None} == {
        f"L{number}" for number in range(1, 11)
    }


def test_every_checklist_item_became_clause() -> None:
    for kind, level, item, ids in CHECKLISTS:
        own = {clause.id: clause for clause in clauses_for(kind)}
        assert ids, item
        for clause_id in ids:
            assert clause_id in own, item
            assert own[clause_id].level == "required" or level == "recommended", item
