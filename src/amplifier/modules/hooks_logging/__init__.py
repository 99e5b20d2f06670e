"""hooks-logging: every event of a session as one line of JSON in a file, secrets taken out.

_options   what the plan may say, and where the file is
_record    an event as a line: levels, bounds, redaction
_file      the file: opened safely, one write per line, a torn end repaired
_mount     how it comes into a session and finds the events of other modules

The handler writes in place: see `_file` for why, and the reference page for what it costs.
"""

from ._event_log import EventLog, LogStatistics, mount, on_session_ready

__all__ = ["EventLog", "LogStatistics", "mount", "on_session_ready"]

__amplifier_module_type__ = "hook"
