"""The meeting point with the event loop: child tasks, deadlines, cancellation, cleanup, timers."""
