"""The strategies that cases are drawn from, by the names that checks use. Needs the ``testing`` extra.

Each type of module has a file of its own; this is the table. Above stands the runner; below stand those files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis.strategies import SearchStrategy

from . import context as _inputs_context
from . import hook as _inputs_hook
from . import orchestrator as _inputs_orchestrator
from . import provider as _inputs_provider
from . import resolver as _inputs_resolver
from . import tool as _inputs_tool

INPUTS: dict[str, Callable[[dict[str, Any]], SearchStrategy[Any]]] = {
    **_inputs_context.INPUTS,
    **_inputs_hook.INPUTS,
    **_inputs_orchestrator.INPUTS,
    **_inputs_resolver.INPUTS,
    **_inputs_provider.INPUTS,
    **_inputs_tool.INPUTS,
}
"""From the name of an input to a function of the subject's facts."""
