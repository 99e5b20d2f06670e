"""A process that builds models and reports the results; the same file runs on the published kernel and on this one.

Reads one Python expression per line, ``(operation, class name, keywords)``, and answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat

    amplifier.compat.install()

import amplifier_core.interfaces as interfaces
import amplifier_core.message_models as message_models
import amplifier_core.models as models

NAMES = {
    "Decimal": Decimal,
    "datetime": datetime,
    "date": date,
    "timedelta": timedelta,
    "timezone": timezone,
}
NAMES |= {"nan": float("nan"), "inf": float("inf")}


def cls_of(name: str) -> Any:
    for module in (models, message_models, interfaces):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def shown(value: Any) -> str:
    """A text that distinguishes types: 1, 1.0, True, "1"."""
    return repr(value)


def observe(made: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for label, look in {
        "dump": lambda: shown(made.model_dump()),
        "json": lambda: shown(made.model_dump(mode="json")),
        "without none": lambda: shown(made.model_dump(exclude_none=True)),
        "by alias": lambda: shown(made.model_dump(by_alias=True, exclude_none=True)),
        "text": lambda: shown(json.loads(made.model_dump_json())),
        "str": lambda: str(made),
        "repr": lambda: repr(made),
        "copy": lambda: shown(made.model_copy().model_dump()),
        "deep copy": lambda: made.model_copy(deep=True) == made,
        "updated": lambda: shown(
            made.model_copy(update={"metadata": {"a": 1}, "success": False}).model_dump()
        ),
        "validated": lambda: (
            type(made).model_validate(made.model_dump()).model_dump() == made.model_dump()
        ),
        "same": lambda: type(made).model_validate(made) is made,
        "read": lambda: shown(type(made).model_validate_json(made.model_dump_json()).model_dump()),
        "fields": lambda: [
            (name, field.is_required()) for name, field in type(made).model_fields.items()
        ],
    }.items():
        try:
            seen[label] = look()
        except Exception as error:
            seen[label] = "raised " + (
                "ValueError" if isinstance(error, ValueError) else type(error).__name__
            )
    return seen


def answer(operation: str, name: str, keywords: dict[str, Any]) -> Any:
    cls = cls_of(name)
    if operation == "build":
        try:
            made = cls(**keywords)
        except ValueError as error:
            return {
                "refused": sorted(
                    {str(place["loc"][0]) for place in error.errors() if place["loc"]}
                )
            }  # type: ignore[attr-defined]
        except TypeError:
            return {"refused": "TypeError"}
        return observe(made)
    if operation == "equal":
        return cls(**keywords["one"]) == cls(**keywords["other"])
    raise LookupError(operation)


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        operation, name, keywords = eval(line, dict(NAMES))
        print(json.dumps(answer(operation, name, keywords)), flush=True)


if __name__ == "__main__":
    main()
