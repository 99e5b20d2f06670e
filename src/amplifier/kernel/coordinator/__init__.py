"""The mount table of one session, and each module's view of it."""
