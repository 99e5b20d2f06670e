"""The names of events, as published modules import them."""

from amplifier.events import *  # noqa: F403 — ours are the published ones and more
