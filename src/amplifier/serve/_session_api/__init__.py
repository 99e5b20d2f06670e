"""The session API: sessions that stay open between requests, with events to follow and questions to answer.

_routes         /api/sessions
_held_sessions  the open sessions, their turns and watchers
_event_log      the latest events of a session
_questions      questions for permission
"""

from ._held_sessions import HeldSessions, SessionStorage
from ._routes import session_routes

__all__ = ["HeldSessions", "SessionStorage", "session_routes"]
