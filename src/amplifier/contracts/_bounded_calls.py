"""Calls into third-party code with contained failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from .cancellation import contained_failure


@contextmanager
def contain_errors(who: str = "") -> Iterator[None]:
    """Contain the failures of third-party code inside the block, see `contained_failure`.

    Args:
        who: Description of the code. The text of a contained failure begins with it.

    Raises:
        Exception: The failure, either as raised or contained.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as exc:
        raise contained_failure(_strip_cancelled(exc), who) from exc


def _strip_cancelled(exc: BaseException) -> BaseException:
    """Return the errors of a group without its cancellations, or else one of the cancellations.

    A task group that fails while it is being cancelled raises such groups, on trio more often
    than on asyncio.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    cancelled, rest = exc.split(anyio.get_cancelled_exc_class())
    if rest is not None or cancelled is None:
        return rest or exc
    leaf: BaseException = cancelled
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
