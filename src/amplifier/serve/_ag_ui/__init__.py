"""The Agent-User Interaction protocol (AG-UI 1.0): a run is a POST, its events are server-sent events.

_routes      /ag-ui
_resume      answers to the questions that ended an earlier run
_run         events of a turn as events of a run
_turn        a turn that outlives its run while it waits for an answer
"""

from ._routes import ag_ui_routes
from ._turn import InterruptibleTurns

__all__ = ["InterruptibleTurns", "ag_ui_routes"]
