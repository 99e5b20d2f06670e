"""Open sessions that several callers share, for servers, the command line and workers."""

# _sessions      sessions that stay open, with one turn at a time, and all those of a server by id
# questions      questions that wait for a person's answer
# runs           the latest events for any number of readers, and runs that outlive their request
# edits          the changes of the writing tools, as diffs
# checkpoints    the changes of turns, to undo them
# client_tools   tools that a client carries out, and the conversations that wait for it

from ._sessions import LiveSession, LiveSessions, LiveTurn, SessionRefused, run_turn
from .client_tools import ClientTool, ClientTools, KeptMessages, with_results
from .questions import Question, Questions, questions_on
from .runs import ClientLeft, EventLog, LiveRun, LiveRuns

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
