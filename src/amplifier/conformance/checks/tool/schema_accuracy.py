"""Searches inputs that a tool's schema accepts and the tool refuses for their shape.

A refusal alone proves little: a file may not exist, a list may be empty. So an inaccuracy is reported only with its
counterpart: an input that the schema forbids and the tool accepts, a key that turns every refusal into success, a key or a
choice that the tool refuses in the words it has for those that do not exist, a bound that occurs in its source. A tool may
accept more than its schema does.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint, resolved
from amplifier.conformance.inputs.values import (
    SHAPED_TEXTS,
    Values,
    is_harmless,
    kinds_of,
    properties_of,
    required_of,
    valid_inputs,
)
from amplifier.conformance.target.literals import choices_in, inputs_in, numbers_in
from amplifier.conformance.target.mounted import CANARY, CheckContext
from amplifier.conformance.target.use import schema_of
from amplifier.conformance.target.virtual_clock import Budget
from amplifier.models import ToolResult

Input = dict[str, Any]

NOTHING: Any = object()
"""In place of a value: remove the property."""


@attrs.frozen
class PropertyPath:
    """The path of a property: ``("items", "[]", "name")`` is the name in each of the items."""

    path: tuple[str, ...]
    schema: Any
    is_required: bool

    def __str__(self) -> str:
        return repr(".".join(each for each in self.path if each != "[]"))

    def holders(self, given: Any) -> list[dict[str, Any]]:
        """The objects that have the property, or could have it."""
        found = [given]
        for part in self.path[:-1]:
            if part == "[]":
                found = [item for value in found if isinstance(value, list) for item in value]
            else:
                found = [value[part] for value in found if isinstance(value, dict) and part in value]
        return [value for value in found if isinstance(value, dict)]

    def is_in(self, given: Any) -> bool:
        """Whether an input has a value at this path."""
        return any(self.path[-1] in holder for holder in self.holders(given))

    def is_lacking(self, given: Any) -> bool:
        """Whether an input has an object that could have the property, and none that has it."""
        return bool(self.holders(given)) and not self.is_in(given)

    def added(self, given: Input, name: str, value: Any) -> Input:
        """The input with one more key in every object that could have the property."""
        copied = copy.deepcopy(given)
        for holder in self.holders(copied):
            holder[name] = value
        return copied

    def changed(self, given: Input, value: Any, name: str | None = None) -> Input:
        """The input with another value here, under another name if one is given."""
        copied = copy.deepcopy(given)
        for holder in self.holders(copied):
            if holder.pop(self.path[-1], NOTHING) is not NOTHING and value is not NOTHING:
                holder[name or self.path[-1]] = value
        return copied

    def value_in(self, given: Input) -> Any:
        """The value of an input at this path."""
        return next(holder[self.path[-1]] for holder in self.holders(given) if self.path[-1] in holder)


def property_paths(top: dict[str, Any], root: Any, depth: int = 0) -> Iterator[PropertyPath]:
    """The paths of all properties that a schema names, those of objects and of lists of objects inside it too."""
    required = required_of(top)
    for name, part in properties_of(top).items():
        yield PropertyPath((name,), part, name in required)
        schema = resolved(part, root)
        inner = resolved(schema.get("items"), root)
        for steps, found in (((name,), schema), ((name, "[]"), inner)):
            if depth < 2 and "properties" in found:
                for path in property_paths(found, root, depth + 1):
                    yield attrs.evolve(path, path=(*steps, *path.path))


_SECONDS = 1.5
_CALLS = 3_000
_MOST_TRIES = 250
_MOST_BASES = 6
_MOST_VALUES = 6
_UNKNOWN_KEY = "no_such_key"
_CONDITIONS = ("anyOf", "oneOf", "if", "dependentSchemas", "dependentRequired", "not")
_OTHER_TYPES: tuple[Any, ...] = ("text", "1234", 1234, 12.5, True, ["text"], [1234], {"text": "text"})
"""Nothing empty and no small number: tools often take those for a missing value, or for an open file."""
_SHAPE_WORDS = re.compile(
    r"\b(must|should|expect|expected|requires?|required|missing|type|int|integer|str|string|list|dict|bool|boolean|number|"
    r"object|array|float|unhashable|attribute|operand|indices|convert)\b",
    re.IGNORECASE,
)


@attrs.frozen
class _Result:
    """Whether a tool accepted an input, and its error message; None if it raised or did not return in time."""

    ok: bool | None
    words: str = ""

    @property
    def refused(self) -> bool:
        """Whether the tool refused the input."""
        return self.ok is False


@check("T8", kind="behaviour", types=("tool",), needs_success=("T8",))
async def tells_the_truth(ctx: CheckContext) -> None:
    """Searches inputs that the schema accepts and the tool refuses for their shape, with a counterpart that proves it."""
    choices = choices_in(ctx.loaded.target)
    async with ctx.mount() as mounted:
        schemas = {at: schema_of(tool) for at, tool in mounted.instances.items()}
    for at, schema in schemas.items():
        accepts = acceptor(schema)
        if schema is None or accepts is None:
            continue
        inputs = [given for given in valid_inputs(schema, CANARY, choices) if accepts(given)][:30]
        await SchemaAccuracy(ctx, at, schema, accepts, inputs, ctx.budget(_CALLS / len(schemas))).check()


class SchemaAccuracy:
    """One tool's schema against its behaviour.

    Args:
        ctx: Mounts the tool anew for every input, so that no result depends on another.
        name: The tool's name.
        schema: Its schema.
        accepts: Whether the schema accepts an input.
        inputs: Inputs that it accepts.
        budget: The limit.
    """

    def __init__(
        self,
        ctx: CheckContext,
        name: str,
        schema: dict[str, Any],
        accepts: Accepts,
        inputs: list[Input],
        budget: Budget,
    ) -> None:
        target = ctx.loaded.target
        self._ctx = ctx
        self._name = name
        self._root = schema
        self._top = resolved(schema, schema)
        self._accepts = accepts
        self._inputs = inputs
        self._undeclared = [
            each for each in inputs_in(target) if each not in properties_of(self._top) and is_harmless(each)
        ]
        self._values = Values(schema, CANARY)
        self._choices = [each for each in choices_in(target) if is_harmless(each)][:20]
        self._budget = budget
        self._known: dict[str, _Result] = {}

    async def check(self) -> None:
        """Report the first inaccuracy."""
        for given in self._inputs:
            await self._try(given)
        finders = (
            self._unknown_key,
            self._other_type_or_key,
            self._hidden_key,
            self._false_choice,
            self._false_bound,
        )
        is_refused = any(self._result(given).refused for given in self._inputs)
        for find in finders if is_refused else finders[-1:]:
            found = await find()
            if found is not None:
                what, given, words = found
                message = f": {words[:150]}" if words else ""
                self._ctx.fault("T8", f"{what}{message}", given={"tool": self._name, "input": given})
                return

    def _result(self, given: Input) -> _Result:
        return self._known.get(fingerprint(given), _Result(None))

    async def _try(self, given: Input) -> _Result:
        key = fingerprint(given)
        if key not in self._known and len(self._known) < _MOST_TRIES and not self._budget.is_spent():
            async with self._ctx.mount() as mounted:
                outcome = await mounted.call(
                    mounted.instances[self._name].execute, copy.deepcopy(given), seconds=_SECONDS
                )
            result = outcome.value
            if not outcome.returned or not isinstance(result, ToolResult):
                self._known[key] = _Result(None)
            elif result.success:
                self._known[key] = _Result(True)
            else:
                error = result.error if isinstance(result.error, dict) else {}
                message = error.get("message")
                words = message if isinstance(message, str) else json.dumps(error, default=repr, sort_keys=True)
                self._known[key] = _Result(False, words)
        return self._result(given)

    def _with(self, key: str) -> list[Input]:
        return [given for given in self._inputs if key in given and self._result(given).ok is not None]

    # ── a key that it does not know ──

    async def _unknown_key(self) -> tuple[str, Input, str] | None:
        if any(key in self._top for key in _CONDITIONS):
            return None  # which keys it takes may depend on others
        for path in property_paths(self._top, self._root):
            having = [given for given in self._inputs if path.is_in(given)]
            lacking = [given for given in self._inputs if path.is_lacking(given) and self._result(given).ok]
            if path.is_required or not lacking or not all(self._result(given).refused for given in having):
                continue
            modes = await self._in_every_mode(lacking[0], path)
            if modes is None:
                continue  # it may take the key in a mode of which no working input is known
            found = await self._refused_like_an_unknown_key([*lacking[:_MOST_BASES], *modes], path)
            if found is not None:
                what = f"the schema names {path}, the tool refuses every input with it, like one with an unknown key"
                return what, *found
        return None

    async def _in_every_mode(self, base: Input, path: PropertyPath) -> list[Input] | None:
        """The input with every choice of every other property; None if the tool refuses one of them."""
        found = []
        for other in property_paths(self._top, self._root):
            if other.path == path.path:
                continue
            schema = resolved(other.schema, self._root)
            choices = self._choices if kinds_of(schema) == ["string"] else []
            values, is_all = _values_of(schema, self._values, other.path[-1])
            for value in values if is_all else choices:
                given = other.added(base, other.path[-1], value)
                if given == base or not self._accepts(given):
                    continue
                if not (await self._try(given)).ok:
                    return None
                found.append(given)
        return found

    async def _refused_like_an_unknown_key(self, bases: list[Input], path: PropertyPath) -> tuple[Input, str] | None:
        """An input with the key and the message of its refusal; None unless all are refused for this key."""
        key = path.path[-1]
        values, is_all = _values_of(resolved(path.schema, self._root), self._values, key)
        found: tuple[Input, str] | None = None
        for base in bases:
            unknown = await self._try(path.added(base, _UNKNOWN_KEY, values[0]))
            for given in [path.added(base, key, value) for value in values]:
                answer = await self._try(given) if self._accepts(given) else unknown
                if not answer.refused or not unknown.refused:
                    return None
                if answer is not unknown:
                    if _without_key(answer.words, key) != _without_key(unknown.words, _UNKNOWN_KEY):
                        return None
                    found = found or (given, answer.words)
        if found is None or _without_key(found[1], key) != found[1]:
            return found
        # A message without the key may be about its value, unless all were tried, or be the same for everything.
        return found if is_all and await self._has_other_words(bases[0], path, found[1]) else None

    async def _has_other_words(self, base: Input, path: PropertyPath, words: str) -> bool:
        """Whether the tool refuses a wrong value of a key that it knows, beside this one, in other words."""
        for name in {name for holder in path.holders(base) for name in holder}:
            for value in _OTHER_TYPES:
                given = attrs.evolve(path, path=(*path.path[:-1], name)).changed(base, value)
                answer = await self._try(given)
                if not self._accepts(given) and answer.refused and answer.words != words:
                    return True
        return False

    # ── another key, another type ──

    async def _other_type_or_key(self) -> tuple[str, Input, str] | None:
        for path in property_paths(self._top, self._root):
            having = [given for given in self._inputs if path.is_in(given)]
            if not having or not all(self._result(given).refused for given in having):
                continue
            if await self._takes_some_value(having[0], path):
                continue
            for given in having[:3]:
                words = self._result(given).words
                taken = await self._taken_instead(given, path, words)
                if taken is not None:
                    what = f"the schema accepts this {path}, the tool refuses it and takes {taken} instead"
                    return what, given, words
        return None

    async def _takes_some_value(self, given: Input, path: PropertyPath) -> bool:
        """Whether it accepts any value of the right type here: it may expect a number in a text, or a name."""
        for value in (*SHAPED_TEXTS, "1 + 1", "{}", "[]", "true", 0, 1, 2, 5, 10, 100, 0.5):
            changed = path.changed(given, value)
            if self._accepts(changed) and (await self._try(changed)).ok:
                return True
        return False

    async def _taken_instead(self, given: Input, path: PropertyPath, words: str) -> str | None:
        if (await self._try(path.changed(given, NOTHING))).refused:  # so it is required, under some name
            for word in self._undeclared:
                if (await self._try(path.changed(given, path.value_in(given), word))).ok:
                    return f"the key {word!r}"
        if not (_SHAPE_WORDS.search(words) or re.search(rf"\b{re.escape(path.path[-1])}\b", words)):
            return None
        for other in (*_OTHER_TYPES, *self._choices):
            changed = path.changed(given, other)
            if not self._accepts(changed) and (await self._try(changed)).ok:
                return json.dumps(other)
        return None

    # ── a key that is needed and not required ──

    async def _hidden_key(self) -> tuple[str, Input, str] | None:
        for path in property_paths(self._top, self._root):
            if not path.is_required:
                found = await self._needed_at(path)
                if found is not None:
                    return found
        if not all(self._result(given).refused for given in self._inputs):
            return None
        for word in self._undeclared:
            for value in (self._values.plain({"type": "string"}, word), 1234, True, ["text"]):
                for given in self._inputs[:2]:
                    if (await self._try({**given, word: value})).ok:
                        what = f"the schema does not name {word!r}, and the tool refuses every input without it"
                        return what, given, self._result(given).words
        return None

    async def _needed_at(self, path: PropertyPath) -> tuple[str, Input, str] | None:
        key = path.path[-1]
        lacking = [given for given in self._inputs if any(key not in holder for holder in path.holders(given))]
        answers = [self._result(given) for given in lacking]
        named = all(each.refused and re.search(rf"\b{re.escape(key)}\b", each.words) for each in answers)
        # The same words whatever else is given: the key is missing, not something that it names.
        if not lacking or not named or len({each.words for each in answers}) > 1:
            return None
        for value in self._values.alternatives(path.schema, key)[:4]:
            given = copy.deepcopy(lacking[0])
            for holder in path.holders(given):
                holder.setdefault(key, value)
            if self._accepts(given) and (await self._try(given)).ok:
                what = f"the schema does not require {path}, the tool refuses every input without it"
                return what, lacking[0], answers[0].words
        return None

    # ── a choice that is none ──

    async def _false_choice(self) -> tuple[str, Input, str] | None:
        for key, part in properties_of(self._top).items():
            for base in [given for given in self._with(key) if self._result(given).ok][:2]:
                schema = resolved(part, self._root)
                for choice in _choices(schema, self._values, key):
                    given = {**base, key: choice}
                    answer = await self._try(given)
                    if not answer.refused or not self._accepts(given) or self._was_accepted(key, choice):
                        continue
                    if await self._is_refused_like_a_forbidden_one(base, key, choice, answer.words):
                        what = f"the schema offers {json.dumps(choice)} for {key!r}, the tool refuses it like a value that the schema forbids"
                        return what, given, answer.words
        return None

    def _was_accepted(self, key: str, choice: Any) -> bool:
        same = [given for given in self._with(key) if fingerprint(given[key]) == fingerprint(choice)]
        return any(self._result(given).ok for given in same)

    async def _is_refused_like_a_forbidden_one(self, base: Input, key: str, choice: Any, words: str) -> bool:
        pattern = _template(words, choice)
        if isinstance(choice, str) and pattern == words:
            return False  # a message without the value may be about anything
        for other in _forbidden(choice):
            given = {**base, key: other}
            if self._accepts(given):
                continue
            answer = await self._try(given)
            if answer.refused and _template(answer.words, other) == pattern:
                return True
        return False

    # ── a bound of its own ──

    async def _false_bound(self) -> tuple[str, Input, str] | None:
        numbers = numbers_in(self._ctx.loaded.target)
        for key, part in properties_of(self._top).items():
            schema = resolved(part, self._root)
            for make, top in _measures(schema):
                base = next((given for given in self._with(key) if self._result(given).ok), None)
                if base is None:
                    continue
                given = {**base, key: make(top)}
                answer = await self._try(given)
                if not answer.refused or not self._accepts(given):
                    continue
                value = base[key]
                size = value if isinstance(value, int) else len(value) if isinstance(value, (str, list)) else 0
                most = await self._most_taken(base, key, make, size, top)
                own = {each for each in (most, most + 1) if each >= 5 and each in numbers}
                if own and (any(str(each) in answer.words for each in own) or key in answer.words):
                    what = f"the schema allows {key!r} up to {top}, the tool refuses more than {most}"
                    return what, given, answer.words
        return None

    async def _most_taken(self, base: Input, key: str, make: Any, low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            if (await self._try({**base, key: make(middle)})).ok:
                low = middle
            else:
                high = middle
        return low


# ── error messages ──


def _template(words: str, value: Any) -> str:
    """An error message with a placeholder for the value."""
    names = {"NoneType": None, "null": None, "bool": True, "boolean": True}
    spellings = {repr(value), str(value), json.dumps(value, default=repr), type(value).__name__}
    spellings |= {name for name, meant in names.items() if type(meant) is type(value)}
    for spelling in sorted(spellings, key=len, reverse=True):
        if spelling:
            words = words.replace(spelling, "<value>")
    return words.replace("'<value>'", "<value>").replace('"<value>"', "<value>")


def _without_key(words: str, key: str) -> str:
    """An error message with a placeholder for the name of a key."""
    return re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "<key>", words)


def _values_of(schema: dict[str, Any], values: Values, key: str) -> tuple[list[Any], bool]:
    """Values of a property, and whether these are all that there are."""
    listed = schema.get("enum")
    if isinstance(listed, list) and 0 < len(listed) <= _MOST_VALUES:
        return list(listed), True
    if kinds_of(schema) == ["boolean"]:
        return [False, True], True
    return values.alternatives(schema, key)[:_MOST_VALUES], False


def _choices(schema: dict[str, Any], values: Values, key: str) -> list[Any]:
    """The values that a schema lists: the members of an enumeration, one for each type, the minimum."""
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"][:12])
    found: list[Any] = []
    if len(kinds_of(schema)) > 1 or any(isinstance(schema.get(each), list) for each in ("anyOf", "oneOf")):
        found += values.alternatives(schema, key)[:8]
    if isinstance(schema.get("minimum"), int):
        found.append(schema["minimum"])
    return found


def _forbidden(choice: Any) -> list[Any]:
    """Values to compare with; those that the schema accepts after all are left out by the caller."""
    if isinstance(choice, str):
        return ["no_such_choice", "another_one"]
    if isinstance(choice, int) and not isinstance(choice, bool):
        return [choice - 1, choice - 2]
    return [1234, ["text"], {"text": "text"}, "no_such_choice", True]


def _measures(schema: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    kinds = kinds_of(schema)
    if "enum" in schema or "const" in schema:
        return
    top = schema.get("maximum")
    if "integer" in kinds and isinstance(top, int) and top <= 10**6:
        yield (lambda size: size), top
    length = schema.get("maxLength")
    if (
        kinds == ["string"]
        and isinstance(length, int)
        and length <= 100_000
        and not {"pattern", "format"} & schema.keys()
    ):
        yield (lambda size: "t" * size), length
    count = schema.get("maxItems")
    if kinds == ["array"] and isinstance(count, int) and count <= 1000 and schema.get("uniqueItems") is not True:
        item = Values(schema, CANARY).plain(schema.get("items", {}))
        yield (lambda size: [item] * size), count
