"""Scripted turns: a loop runs in a session of doubles, and everything is logged."""
