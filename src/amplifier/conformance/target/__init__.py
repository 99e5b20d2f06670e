"""The module under examination: where it is, how it is imported, which literals its source holds."""
