"""Helpers of the suite: pytest plugins, the leak guard, readers of the source tree."""
