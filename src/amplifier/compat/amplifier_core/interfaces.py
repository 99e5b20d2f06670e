"""The published contracts, as protocols that don't support `isinstance`."""

from typing import Any, Protocol

import amplifier.contracts as _ours
from amplifier.contracts import *  # noqa: F403
from amplifier.models import *  # noqa: F403


def _published(protocol: Any, **members: object) -> object:
    members = {
        "__module__": __name__,
        "__doc__": protocol.__doc__,
        "_is_runtime_protocol": False,
        **members,
    }
    return type(protocol)(protocol.__name__, (protocol, Protocol), members)


_PROTOCOLS = ("Orchestrator", "Provider", "ContextManager", "HookHandler", "ApprovalProvider")
_schema = property(lambda self: {}, doc="The input's JSON Schema.")
globals().update({name: _published(getattr(_ours, name)) for name in _PROTOCOLS})
globals()["Tool"] = _published(_ours.Tool, input_schema=_schema)
