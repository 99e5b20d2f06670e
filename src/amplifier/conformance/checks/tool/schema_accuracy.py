"""Searches inputs that a tool's schema accepts and the tool refuses for their shape.

A refusal alone proves little: a file may not exist, a list may be empty. So it is reported only with its counterpart: a key or a choice that the tool
refuses in the words it has for those that do not exist, an input that the schema forbids and the tool accepts, a key that turns every refusal
into success. A tool may accept more than its schema does. Only the properties of the input itself are examined, not those of objects inside it.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, resolved
from amplifier.conformance.inputs.values import (
    SHAPED_TEXTS,
    Values,
    is_harmless,
    kinds_of,
    properties_of,
    required_of,
    valid_inputs,
)
from amplifier.conformance.oracles.calls import SECONDS_PER_CALL
from amplifier.conformance.target.mounted import CANARY, CheckContext
from amplifier.conformance.target.source import choices_in, inputs_in
from amplifier.conformance.target.use import schema_of
from amplifier.models import ToolResult

Input = dict[str, Any]
Found = tuple[str, Input]
"""What is wrong, and an input that shows it."""

_CALLS = 3_000
_MOST_TRIES = 250
_UNKNOWN_KEY = "no_such_key"
_CONDITIONS = ("anyOf", "oneOf", "if", "dependentSchemas", "dependentRequired", "not")
_OTHER_TYPES: tuple[Any, ...] = ("text", "1234", 1234, 12.5, True, ["text"], [1234], {"text": "text"})
"""Nothing empty and no small number: tools often take those for a missing value, or for an open file."""
_NO_CHOICES: tuple[Any, ...] = ("no_such_choice", 1234, ["text"], {"text": "text"}, True)
_PLAUSIBLE = (*SHAPED_TEXTS, "1 + 1", "{}", "[]", "true", 0, 1, 2, 5, 10, 100, 0.5)
_SHAPE_WORDS = re.compile(
    r"\b(must|should|expect|expected|requires?|required|missing|type|int|integer|str|string|list|dict|bool|boolean|number|"
    r"object|array|float|unhashable|attribute|operand|indices|convert)\b",
    re.IGNORECASE,
)


@check("T8", kind="behaviour", types=("tool",), needs_success=("T8",))
async def tells_the_truth(ctx: CheckContext) -> None:
    """Searches inputs that the schema accepts and the tool refuses for their shape, with a counterpart that proves it."""
    async with ctx.mount() as mounted:
        schemas = {name: schema_of(tool) for name, tool in mounted.instances.items()}
    for name, schema in schemas.items():
        if schema is not None and acceptor(schema) is not None:
            found = await _SchemaCheck(ctx, name, schema, _CALLS / len(schemas)).find()
            if found is not None:
                what, given = found
                ctx.fault("T8", what, given={"tool": name, "input": given})


class _SchemaCheck:
    """One tool's schema against its behaviour; the tool is mounted anew for every input, so that no result depends on another."""

    def __init__(self, ctx: CheckContext, name: str, schema: dict[str, Any], calls: float) -> None:
        target, self._top = ctx.loaded.target, resolved(schema, schema)
        accepts = acceptor(schema)
        assert accepts is not None
        self._ctx, self._name, self._accepts = ctx, name, accepts
        self._parts = {key: resolved(part, schema) for key, part in properties_of(self._top).items()}
        self._values = Values(schema, CANARY)
        self._choices = [each for each in choices_in(target) if is_harmless(each)][:20]
        self._undeclared = [each for each in inputs_in(target) if each not in self._parts and is_harmless(each)]
        self._inputs = [each for each in valid_inputs(schema, CANARY, choices_in(target)) if accepts(each)][:30]
        self._budget = ctx.budget(calls)
        self._known: dict[str, bool | str | None] = {}

    async def find(self) -> Found | None:
        """The first inaccuracy."""
        if not any([isinstance(await self._ask(given), str) for given in self._inputs]):
            return None
        for find in (self._unknown_key, self._other_type_or_key, self._needed_key, self._false_choice):
            for key in self._parts:
                found = await find(key)
                if found is not None:
                    return f"{found[0]}: {str(await self._ask(found[1]))[:150]}", found[1]
        return await self._undeclared_key()

    async def _ask(self, given: Input) -> bool | str | None:
        """True if the tool accepts an input, the words of its refusal if not; None if it raised, or was not asked."""
        key = fingerprint(given)
        if key not in self._known and len(self._known) < _MOST_TRIES and not self._budget.is_spent():
            async with self._ctx.mount() as mounted:
                execute = mounted.instances[self._name].execute
                result = (await mounted.call(execute, copy.deepcopy(given), seconds=SECONDS_PER_CALL)).value
            self._known[key] = None
            if isinstance(result, ToolResult):
                error = result.error if isinstance(result.error, dict) else {}
                words = error.get("message") or json.dumps(error, default=repr, sort_keys=True)
                self._known[key] = bool(result.success) or str(words)
        return self._known.get(key)

    async def _all_refused(self, inputs: list[Input]) -> bool:
        return bool(inputs) and all([isinstance(await self._ask(given), str) for given in inputs])

    def _is_required(self, key: str) -> bool:
        return key in required_of(self._top)

    async def _unknown_key(self, key: str) -> Found | None:
        """A key that it refuses as it does one that does not exist, in every mode that is known to work without it."""
        bases = [given for given in self._inputs if key not in given and await self._ask(given) is True]
        if self._is_required(key) or any(each in self._top for each in _CONDITIONS) or not bases:
            return None  # which keys it takes may depend on others
        having = [given for given in self._inputs if key in given]
        if not await self._all_refused(having) or not await self._works_in_every_mode(bases[0], key):
            return None
        value = self._values.plain(self._parts[key], key)
        for base in bases:
            with_it, unknown = [await self._ask({**base, each: value}) for each in (key, _UNKNOWN_KEY)]
            named = _without(with_it, key)
            if named is None or named == with_it or named != _without(unknown, _UNKNOWN_KEY):
                return None
        what = f"the schema names {key!r}, the tool refuses every input with it, like one with an unknown key"
        return what, {**bases[0], key: value}

    async def _works_in_every_mode(self, base: Input, without: str) -> bool:
        """Whether an input works with every choice of every other property: a key may belong to one of them."""
        for key, part in self._parts.items():
            choices = _closed(part) or (self._choices if kinds_of(part) == ["string"] else [])
            for choice in choices if key != without else ():
                given = {**base, key: choice}
                if self._accepts(given) and await self._ask(given) is not True:
                    return False
        return True

    async def _other_type_or_key(self, key: str) -> Found | None:
        """A property of which it takes no value, and takes one that the schema forbids, or one under another name."""
        having = [given for given in self._inputs if key in given]
        if not await self._all_refused(having):
            return None
        given, words = having[0], str(await self._ask(having[0]))
        if any([await self._ask(each) is True for each in self._with_values(key, given, _PLAUSIBLE, valid=True)]):
            return None  # it may expect a number in a text, or a name
        what = f"the schema accepts this {key!r}, the tool refuses it and takes"
        rest = {name: value for name, value in given.items() if name != key}
        if isinstance(await self._ask(rest), str):
            for word in self._undeclared:  # so it is required, under some name
                if await self._ask({**rest, word: given[key]}) is True:
                    return f"{what} the key {word!r} instead", given
        if _SHAPE_WORDS.search(words) or _without(words, key) != words:
            for other in self._with_values(key, given, (*_OTHER_TYPES, *self._choices), valid=False):
                if await self._ask(other) is True:
                    return f"{what} {json.dumps(other[key])} instead", given
        return None

    def _with_values(self, key: str, given: Input, values: tuple[Any, ...], *, valid: bool) -> list[Input]:
        changed = [{**given, key: value} for value in values]
        return [each for each in changed if self._accepts(each) is valid]

    async def _needed_key(self, key: str) -> Found | None:
        """A key that is not required, without which it refuses every input in the same words, which name it."""
        lacking = [given for given in self._inputs if key not in given]
        words = {await self._ask(given) for given in lacking}
        if self._is_required(key) or len(words) != 1 or _without(next(iter(words)), key) in (None, *words):
            return None
        for value in self._values.alternatives(self._parts[key], key)[:4]:
            given = {**lacking[0], key: value}
            if self._accepts(given) and await self._ask(given) is True:
                return f"the schema does not require {key!r}, the tool refuses every input without it", lacking[0]
        return None

    async def _undeclared_key(self) -> Found | None:
        """A key that the schema does not name, without which it refuses every input."""
        for word in self._undeclared if await self._all_refused(self._inputs) else ():
            for value in (self._values.plain({"type": "string"}, word), 1234, True, ["text"]):
                for given in self._inputs[:2]:
                    if await self._ask({**given, word: value}) is True:
                        return f"the schema does not name {word!r}, and the tool refuses every input without it", given
        return None

    async def _false_choice(self, key: str) -> Found | None:
        """A choice that it refuses as it does a value that the schema forbids."""
        working = [given for given in self._inputs if key in given and await self._ask(given) is True]
        taken = {fingerprint(given[key]) for given in working}
        for choice in _closed(self._parts[key]) or _one_of_each_type(self._parts[key], self._values):
            if not working or fingerprint(choice) in taken:
                continue
            given = {**working[0], key: choice}
            words = _without_value(await self._ask(given), choice) if self._accepts(given) else None
            others = (choice - 1, choice - 2) if type(choice) is int else _NO_CHOICES
            for forbidden in self._with_values(key, given, others, valid=False) if words is not None else ():
                if _without_value(await self._ask(forbidden), forbidden[key]) == words:
                    what = f"the schema offers {json.dumps(choice)} for {key!r}, the tool refuses it like a value that"
                    return f"{what} the schema forbids", given
        return None


def _closed(schema: dict[str, Any]) -> list[Any]:
    """All values of a property, if there are only some."""
    listed = schema.get("enum")
    return list(listed[:12]) if isinstance(listed, list) else [False, True] if kinds_of(schema) == ["boolean"] else []


def _one_of_each_type(schema: dict[str, Any], values: Values) -> list[Any]:
    least = schema.get("minimum")
    is_union = len(kinds_of(schema)) > 1 or any(isinstance(schema.get(each), list) for each in ("anyOf", "oneOf"))
    return values.alternatives(schema)[:8] if is_union else [least] if type(least) is int else []


def _without(words: bool | str | None, key: str) -> str | None:
    """The words of a refusal with a placeholder for the name of a key; None if there are none."""
    return re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "<key>", words) if isinstance(words, str) else None


def _without_value(words: bool | str | None, value: Any) -> str | None:
    """The words of a refusal with a placeholder for a value; None if there are none, or if they do not name a text."""
    if not isinstance(words, str):
        return None
    names = {"NoneType": None, "null": None, "bool": True, "boolean": True}
    spellings = {repr(value), str(value), json.dumps(value, default=repr), type(value).__name__}
    spellings |= {name for name, meant in names.items() if type(meant) is type(value)}
    found = words
    for spelling in sorted(filter(None, spellings), key=len, reverse=True):
        found = found.replace(spelling, "<value>")
    if isinstance(value, str) and found == words:
        return None  # a message without the value may be about anything
    return found.replace("'<value>'", "<value>").replace('"<value>"', "<value>")
