"""What every module promises about the keys it is given: nobody else gets to read them.

Only settings that the module's own source looks up under the name of a key are given; they hold a text found nowhere else.
"""

from __future__ import annotations

import logging
from typing import Any

from .._exercise import exercises
from .._registry import check
from .._scene import MountFailed, Stage
from .._settling import SECRET, is_secret, secret_variables, set_environment
from .._words import settings_in


class _Records(logging.Handler):
    """Keeps what the subject logs, at every level, and what anybody logs as a warning."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.DEBUG)
        self._stage = stage
        self.texts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or self._stage.loaded.subject.owns(record.pathname):
            self.texts.append((f"{record.levelname} of {record.name!r}", self.format(record)))


@check("A22", kind="hygiene")
async def keeps_secrets(stage: Stage) -> None:
    """Gives every setting that looks like a key a text found nowhere else, and looks for it in events, logs and errors."""
    keys = [key for key in settings_in(stage.loaded.subject) if is_secret(key)]
    if not keys and not secret_variables(stage.loaded):
        return
    set_environment(stage.loaded)
    root, records = logging.getLogger(), _Records(stage)
    level = root.level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    heard: list[tuple[str, Any]] = []
    try:
        async with stage.scene(config={**stage.loaded.config, **dict.fromkeys(keys, SECRET)}) as scene:
            for exercise in exercises(scene):
                outcome = await scene.call(exercise.run, scene)
                if outcome.error is not None:
                    heard.append((f"the error of {exercise.name}", str(outcome.error)))
            heard += [(f"the event {name}", payload) for name, payload in scene.events.events]
    except MountFailed as failed:
        heard.append(("the error of mount", str(failed.outcome.error)))
    finally:
        root.setLevel(level)
        root.removeHandler(records)
    for where, what in [*heard, *((f"a log record, {name},", text) for name, text in records.texts)]:
        if SECRET in repr(what):
            stage.fault("A22", f"{where} holds the secret that was given as {', '.join(keys) or 'a variable'}")
            return
