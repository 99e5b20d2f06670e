"""The meeting point with the event loop: sections, deadlines, cancellation, cleanup, tasks."""
