"""Open sessions that several callers use, for servers, the command line and workers.

_sessions      sessions that stay open: one turn at a time, questions, watchers, their end; all those of a server, by id
_questions     what waits for a person's answer
_runs          the latest events, for any number of readers; what clients have asked for, which they may leave and come back to
_edits         what the writing tools change, as diffs
_checkpoints   what turns changed, to take it back
_client_tools  tools that a client carries out, and the conversations that wait for it
"""

from ._client_tools import ClientTool, ClientTools, KeptMessages, with_results
from ._questions import Question, Questions, questions_on
from ._runs import ClientLeft, EventLog, LiveRun, LiveRuns
from ._sessions import LiveSession, LiveSessions, LiveTurn, SessionRefused, run_turn

__all__ = [
    "ClientLeft",
    "ClientTool",
    "ClientTools",
    "EventLog",
    "KeptMessages",
    "LiveRun",
    "LiveRuns",
    "LiveSession",
    "LiveSessions",
    "LiveTurn",
    "Question",
    "Questions",
    "SessionRefused",
    "questions_on",
    "run_turn",
    "with_results",
]
