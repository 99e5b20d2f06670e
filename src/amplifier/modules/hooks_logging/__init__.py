"""hooks-logging: writes every event of a session as one line of JSON to a file, without secrets.

_options     the configuration and the path of the file
_log_record  an event as a line: level, size limits, redaction
_log_file    the file: opened safely, one write per line, an incomplete last line repaired
_rotation    renames a full file, safely with several writers
_event_log   the handler, and how it finds the events of other modules

The handler writes in the event loop's thread: see `_log_file` for the reason, and the reference page for the cost.
"""

from ._event_log import EventLog, LogStatistics, mount, on_session_ready

__all__ = ["EventLog", "LogStatistics", "mount", "on_session_ready"]

__amplifier_module_type__ = "hook"
