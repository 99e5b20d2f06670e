"""What the strategies need to know of a subject: its schemas, its handlers, the words of its source; as JSON values.

Above stands the runner; below stands the scene.
"""

from __future__ import annotations

from typing import Any

from amplifier.conformance.harness.mounted_module import MountFailed, Stage
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.target.source_literals import choices_in, inputs_in, texts_in


async def gather(stage: Stage) -> dict[str, Any]:
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
        async with stage.scene() as scene:
            if stage.loaded.module_type == "tool":
                facts["tools"] = {name: schema_of(tool) for name, tool in scene.instances.items()}
            facts["handlers"] = [[each.name, each.event] for each in scene.registrations]
    except MountFailed:
        return facts
    return facts
