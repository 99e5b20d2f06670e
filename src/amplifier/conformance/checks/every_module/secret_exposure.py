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
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.source_literals import settings_in

_REFUSALS = ("status-401", "status-503")
"""What the service answers where keys are likely to be told: a key that is refused, a request that is shown for help."""
_LONGEST_CHAIN = 5


class _Records(logging.Handler):
    """Keeps what the subject logs, at every level, and what anybody logs as a warning."""

    def __init__(self, ctx: CheckContext) -> None:
        super().__init__(logging.DEBUG)
        self._ctx = ctx
        self.texts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or self._ctx.loaded.subject.owns(record.pathname):
            self.texts.append((f"{record.levelname} of {record.name!r}", self.format(record)))


@check("A22", kind="hygiene")
async def keeps_secrets(ctx: CheckContext) -> None:
    """Gives every setting that looks like a key a text found nowhere else, and looks for it in events, logs and errors."""
    keys = [key for key in settings_in(ctx.loaded.subject) if is_secret(key)]
    if not keys and not secret_variables(ctx.loaded):
        return
    set_environment(ctx.loaded)
    for scenario in ("auto", *_REFUSALS) if is_served(ctx.loaded.config) else ("auto",):
        config = json.loads(json.dumps(ctx.loaded.config).replace("/auto", f"/{scenario}"))
        for where, said in await _said(ctx, {**config, **dict.fromkeys(keys, SECRET)}):
            if SECRET in repr(said):
                given = {"settings": keys, "answer of the service": scenario}
                what = f"{where} holds the secret that was given as {', '.join(keys) or 'a variable'}"
                ctx.fault("A22", what, given=given)
                return


async def _said(ctx: CheckContext, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """What events, errors and log records hold when the module is used with these settings."""
    root, records = logging.getLogger(), _Records(ctx)
    level = root.level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    heard: list[tuple[str, Any]] = []
    try:
        async with ctx.mount(config=config) as mounted:
            for operation in typical_operations(mounted):
                outcome = await mounted.call(operation.run, mounted)
                if outcome.error is not None:
                    heard.append((f"the error of {operation.name}", _told_by(outcome.error)))
            heard += [(f"the event {name}", payload) for name, payload in mounted.events.events]
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
