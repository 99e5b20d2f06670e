"""What every module promises about the keys it is given: nobody else gets to read them.

Only settings that the module's own source looks up under the name of a key are given; they hold a text found nowhere else.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.guess_config import SECRET, is_secret, secret_variables, set_environment
from amplifier.conformance.harness.llm_server_process import is_served
from amplifier.conformance.harness.mounted_module import MountFailed, Stage
from amplifier.conformance.harness.typical_use import exercises
from amplifier.conformance.target.source_literals import settings_in

_REFUSALS = ("status-401", "status-503")
"""What the service answers where keys are likely to be told: a key that is refused, a request that is shown for help."""
_LONGEST_CHAIN = 5


class _Records(logging.Handler):
    """Keeps what the subject logs, at every level, and what anybody logs as a warning."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.DEBUG)
        self._stage = stage
        self.texts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or self._stage.loaded.target.owns(record.pathname):
            self.texts.append((f"{record.levelname} of {record.name!r}", self.format(record)))


@check("A22", kind="hygiene")
async def keeps_secrets(stage: Stage) -> None:
    """Gives every setting that looks like a key a text found nowhere else, and looks for it in events, logs and errors."""
    keys = [key for key in settings_in(stage.loaded.target) if is_secret(key)]
    if not keys and not secret_variables(stage.loaded):
        return
    set_environment(stage.loaded)
    for scenario in ("auto", *_REFUSALS) if is_served(stage.loaded.config) else ("auto",):
        config = json.loads(json.dumps(stage.loaded.config).replace("/auto", f"/{scenario}"))
        for where, said in await _said(stage, {**config, **dict.fromkeys(keys, SECRET)}):
            if SECRET in repr(said):
                given = {"settings": keys, "answer of the service": scenario}
                what = f"{where} holds the secret that was given as {', '.join(keys) or 'a variable'}"
                stage.fault("A22", what, given=given)
                return


async def _said(stage: Stage, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """What events, errors and log records hold when the module is used with these settings."""
    root, records = logging.getLogger(), _Records(stage)
    level = root.level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    heard: list[tuple[str, Any]] = []
    try:
        async with stage.scene(config=config) as scene:
            for exercise in exercises(scene):
                outcome = await scene.call(exercise.run, scene)
                if outcome.error is not None:
                    heard.append((f"the error of {exercise.name}", _told_by(outcome.error)))
            heard += [(f"the event {name}", payload) for name, payload in scene.events.events]
    except MountFailed as failed:
        heard.append(("the error of mount", _told_by(failed.outcome.error)))
    finally:
        root.setLevel(level)
        root.removeHandler(records)
    return [*heard, *((f"a log record, {name},", text) for name, text in records.texts)]


def _told_by(error: BaseException | None) -> list[str]:
    """What an error says, and what the errors say that it came from."""
    told: list[str] = []
    while error is not None and len(told) < _LONGEST_CHAIN:
        told.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return told
