"""Tests start from known process state, wherever the suite was started: signals, file mode mask, environment.

A background job of a script inherits an ignored SIGINT, `nohup` an ignored SIGHUP, and both hand it on to every program that
a test starts. Variables that colour, wrap or translate output, and keys of model services, come from the user's shell.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

# Python itself ignores these two, and `subprocess` restores them in children.
_IGNORED_BY_PYTHON = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)}

_REMOVED = re.compile(
    r"NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|LANGUAGE|LC_.*|TZ|PYTHONWARNINGS|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE"
    r"|AMPLIFIER_HOME|AMPLIFIER_MODULES|.*_API_KEY|ANTHROPIC_BASE_URL|OPENAI_BASE_URL"
)


@pytest.fixture(scope="session", autouse=True)
def known_process_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reset what the test process inherited, so that the programs it starts inherit the defaults."""
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, [])
    mask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as environment:
        for name in filter(_REMOVED.fullmatch, list(os.environ)):
            environment.delenv(name)
        environment.setenv("LANG", "C.UTF-8")
        # Sessions are stored below it by default; the user's own must not be seen, nor the home directory be writable.
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
    os.umask(mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
