"""hooks-logging: writes every event of a session as one line of JSON to a file, without secrets.

`_options` is the configuration, `_log_record` makes a line of an event, `_log_file` writes and rotates the file, `_event_log` is
the handler. It writes in the event loop's thread: see `_log_file` for the reason, and the reference page for the cost.
"""

from ._event_log import EventLog, mount, on_session_ready

__all__ = ["EventLog", "mount", "on_session_ready"]

__amplifier_module_type__ = "hook"
