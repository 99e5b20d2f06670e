"""The process in which a subject is run: reads a job, says what it finds, one JSON line each, on its standard output.

The subject cannot harm the one who asks: what it prints goes elsewhere, a call that cannot be stopped ends this process,
and `_run` starts another one for what is left. Started as ``python -m amplifier.conformance._worker``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from threading import get_native_id
from typing import Any, NoReturn

import attrs

from amplifier.loading._alias_advice import advise_on_alias

from . import _all_checks  # noqa: F401 — importing the checks registers them
from ._clock import kept_waiting
from ._loading import load
from ._resources import mark_descendants
from ._runner import Job, Runner
from ._scene import Fault
from ._subject import find_subject

_SIGN_OF_LIFE = 10.0
_LONGEST_STEP = 150.0
"""Seconds for one step of the quick profile, not counting those in which there was no processor for us."""
ABANDONED = 3
"""The exit code after a call that could not be stopped."""


def main() -> int:
    """Do the job on standard input."""
    job = Job(**json.loads(sys.stdin.buffer.read()))
    lines = _own_stdout()
    mark_descendants()
    logging.raiseExceptions = False

    writing = threading.RLock()

    def say(line: dict[str, Any]) -> None:
        text = json.dumps(line, default=repr, ensure_ascii=True).encode() + b"\n"
        with writing:
            lines.write(text)
            lines.flush()

    def last_words(step: str, fault: Fault) -> NoReturn:
        say({"fault": attrs.asdict(fault), "step": step})
        say({"abandoned": step})
        os._exit(ABANDONED)

    subject = find_subject(job.target, job.module_type)
    say({"start": "import"})
    try:
        loaded = load(subject, job.config, job.plan)
    except BaseException as error:  # noqa: BLE001 — foreign code: importing may raise anything, exit included
        place = next(
            (
                f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119 — a name out of a traceback
                for frame in reversed(traceback.extract_tb(error.__traceback__))
                if subject.owns(frame.filename)
            ),
            None,
        )
        text = advise_on_alias(f"{type(error).__name__}: {error}", error)
        say({"unimported": text, "location": place})
        return 0
    if "amplifier_core" in sys.modules:
        say(
            {
                "note": f"it imports amplifier_core, here an alias of this kernel ({sys.modules['amplifier_core'].__file__})"
            }
        )
    say({"loaded": {"type": loaded.module_type, "backends": list(loaded.backends)}})
    runner = Runner(loaded, job, say, last_words)
    say({"steps": [step.name for step in runner.steps()]})
    threading.Thread(target=_show_life, args=(runner, say, get_native_id()), name="life", daemon=True).start()
    runner.run()
    say({"end": True})
    return 0


def _show_life(runner: Runner, say: Callable[[dict[str, Any]], None], main_thread: int) -> None:
    """Tell that a step still goes on, for as long as one may take on a machine that has nothing else to do."""
    while True:
        step, started = runner.step, time.monotonic() - kept_waiting(main_thread)
        longest = _LONGEST_STEP if not runner.is_thorough else _LONGEST_STEP * 10
        while runner.step == step and time.monotonic() - kept_waiting(main_thread) - started < longest:
            time.sleep(_SIGN_OF_LIFE)
            say({"alive": step})
        while runner.step == step:
            time.sleep(_SIGN_OF_LIFE)


def _own_stdout() -> Any:
    """Keep standard output for us; what the subject prints goes to a file that nobody reads."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return os.fdopen(kept, "wb")


if __name__ == "__main__":
    sys.exit(main())
