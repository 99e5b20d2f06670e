"""Published modules in native sessions: what their mount function and what it mounts have to be told apart from ours.

A native loader asks about every module it has loaded (`_install.look_at`); ours get their own mount function back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier.contracts._containment import running_asyncio_loop

from ._backends import is_published, refuse_asyncio_on_trio
from ._turns import cancelled_once


def adapted(module_id: str, mount: Callable[..., Any]) -> Callable[..., Any]:
    """The mount function of a module that a native loader loaded, so that it fits our sessions if it is a published one.

    Raises:
        ModuleLoadError: Trio runs, and a published module calls asyncio; names the first such call and where it stands.
    """
    package = getattr(mount, "__module__", None)
    if not isinstance(package, str) or not is_published(package):
        return mount
    if running_asyncio_loop() is None:
        refuse_asyncio_on_trio(package, module_id)
        return mount
    return cancelled_once(mount)
