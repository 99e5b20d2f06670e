"""What the kernel is doing at a frame of a task: kept by the objects that do it, read when a session hangs.

Every kernel class whose methods wait for something has a method ``running_call`` that returns a `RunningCall`. The kernel keeps no list
of its tasks; `introspection` asks the objects whose methods are in the chain of awaits of each task.
"""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(eq=False, kw_only=True)
class RunningCall:
    """What one object of the kernel is waiting for.

    Attributes:
        coordinator: Of the session it works for.
        label: What is called: an object of the kernel that knows its module, or words.
        module: Whose code is called, if the label does not name it.
        until: When its deadline is over, by the loop's clock; infinite for "never", None when it sets none.
        goes_on_in: The task in which the work goes on while this one waits for it.
    """

    coordinator: Any = None
    label: Any = None
    module: str | None = None
    until: float | None = None
    goes_on_in: Any = None
