"""What the strategies need to know of a subject: its schemas, its handlers, the words of its source; as JSON values.

Above stands the runner; below stands the scene.
"""

from __future__ import annotations

from typing import Any

from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.target.source_literals import choices_in, inputs_in, texts_in


async def gather(stage: CheckContext) -> dict[str, Any]:
    """Mount the subject once and look."""
    subject = stage.loaded.subject
    facts: dict[str, Any] = {
        "words": inputs_in(subject),
        "texts": texts_in(subject),
        "choices": choices_in(subject),
        "tools": {},
        "handlers": [],
    }
    try:
        async with stage.mount() as mounted:
            if stage.loaded.module_type == "tool":
                facts["tools"] = {name: schema_of(tool) for name, tool in mounted.instances.items()}
            facts["handlers"] = [[each.name, each.event] for each in mounted.registrations]
    except MountFailed:
        return facts
    return facts
