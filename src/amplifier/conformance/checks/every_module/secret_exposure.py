"""Checks that a module does not expose the keys it is given.

Only settings that the module's own source reads under the name of a key are given; their value occurs nowhere else.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.guess_config import SECRET, is_secret, secret_variables, set_environment
from amplifier.conformance.harness.llm_server.server_process import is_served
from amplifier.conformance.harness.mounted_module import CheckContext, MountFailed
from amplifier.conformance.harness.resources.observers import captured_logs
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.target.source_literals import settings_in

_REFUSALS = ("status-401", "status-503")
"""Responses of the server that make modules log keys: a rejected key, a failed request."""
_LONGEST_CHAIN = 5


@check("A22", kind="hygiene")
async def keeps_secrets(ctx: CheckContext) -> None:
    """Sets every setting that looks like a key to a unique text, and searches events, logs and errors for it."""
    keys = [key for key in settings_in(ctx.loaded.target) if is_secret(key)]
    if not keys and not secret_variables(ctx.loaded):
        return
    set_environment(ctx.loaded)
    for scenario in ("auto", *_REFUSALS) if is_served(ctx.loaded.config) else ("auto",):
        config = json.loads(json.dumps(ctx.loaded.config).replace("/auto", f"/{scenario}"))
        for where, text in await _emitted(ctx, {**config, **dict.fromkeys(keys, SECRET)}):
            if SECRET in repr(text):
                given = {"settings": keys, "answer of the service": scenario}
                what = f"{where} holds the secret that was given as {', '.join(keys) or 'a variable'}"
                ctx.fault("A22", what, given=given)
                return


async def _emitted(ctx: CheckContext, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """The contents of events, errors and log records when the module is used with these settings."""
    found: list[tuple[str, Any]] = []

    def wants(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or ctx.loaded.target.owns(record.pathname)

    with captured_logs(wants) as records:
        try:
            async with ctx.mount(config=config) as mounted:
                for operation in typical_operations(mounted):
                    outcome = await mounted.call(operation.run, mounted)
                    found.append((f"the error of {operation.name}", _texts_of(outcome.error)))
                found += [(f"the event {name}", payload) for name, payload in mounted.events.events]
        except MountFailed as failed:
            found.append(("the error of mount", _texts_of(failed.outcome.error)))
    formatter = logging.Formatter()
    for record in records:
        found.append((f"a log record, {record.levelname} of {record.name!r},", formatter.format(record)))
    return found


def _texts_of(error: BaseException | None) -> list[str]:
    """The texts of an error and of the errors that caused it."""
    texts: list[str] = []
    while error is not None and len(texts) < _LONGEST_CHAIN:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or error.__context__
    return texts
