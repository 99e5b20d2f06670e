"""The mutants that the kit is measured by: every operator changes something, and what it makes is valid Python."""

from __future__ import annotations

import ast
import random

import pytest

from tests.conformance.mutants import OPERATORS, Mutant, draw, originals, table

EXAMPLES = {
    "await dropped": ("async def f():\n    await g()", "async def f():\n    g()"),
    "shield removed": (
        "def f():\n    with CancelScope(shield=True):\n        pass",
        "shield=False",
    ),
    "except widened": (
        "def f():\n    try:\n        g()\n    except OSError:\n        pass",
        "except BaseException:",
    ),
    "state shared": (
        "class A:\n\n    def __init__(self):\n        self.x = []",
        "self.x = self._shared_x",
    ),
    "copy lost": ("def f(a):\n    return list(a)", "return a"),
    "lock missing": (
        "async def f(self):\n    async with self.lock:\n        g()",
        "async def f(self):\n    g()",
    ),
    "key incomplete": ("def f(a, b):\n    key = (a, b)", "key = a"),
    "event skipped": ("async def f(h):\n    await h.emit('a:b', {})", "async def f(h):\n    pass"),
    "off by one": ("def f(a):\n    return a[1:]", "a[2:]"),
}


@pytest.mark.parametrize("operator", EXAMPLES)
def test_an_operator_makes_its_change(operator):
    source, expected = EXAMPLES[operator]
    tree = ast.parse(source)
    changes = list(OPERATORS[operator](tree))
    assert len(changes) == 1
    changes[0]()
    assert expected in ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.slow
def test_mutants_are_drawn_of_every_type_and_compile():
    modules, chance = originals(), random.Random(0)
    drawn = [mutant for _ in range(200) if (mutant := draw(chance, modules)) is not None]
    assert {mutant.original.type for mutant in drawn} == {each.type for each in modules}
    for mutant in drawn:
        compile(mutant.text, mutant.file, "exec")
        assert mutant.diff().count("\n@@") >= 1


def test_the_table_counts_fates_by_operator_and_type():
    original = originals()[0]
    mutants = [
        Mutant(original, "off by one", "x.py", "", fate, clauses)
        for fate, clauses in (("found", ("A9",)), ("survived", ()))
    ]
    lines = table(mutants).splitlines()
    assert "| off by one | 2 | 1 | 0 | 1 |" in lines
    assert f"| {original.type} | 2 | 1 | 0 | 1 |" in lines
    assert lines[-1] == "Found by: A9 1"
