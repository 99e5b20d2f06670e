"""Open sessions that several callers use, for servers, the command line and workers.

_session       a session that stays open: one turn at a time, questions, watchers, its end
_sessions      all open sessions of a server, by id
_questions     what waits for a person's answer
_event_log     the latest events, for any number of readers
_runs          what clients have asked for, which they may leave and come back to
_edits         what the writing tools change, as diffs
_checkpoints   what turns changed, to take it back
_client_tools  tools that a client carries out, and the conversations that wait for it
"""

from ._client_tools import ClientTool, ClientTools, KeptMessages, with_results
from ._event_log import EventLog
from ._questions import Question, Questions, questions_on
from ._runs import ClientLeft, LiveRun, LiveRuns
from ._session import LiveSession, LiveTurn, run_turn
from ._sessions import LiveSessions, SessionRefused

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
