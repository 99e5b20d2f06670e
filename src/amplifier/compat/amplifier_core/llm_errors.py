"""The errors providers raise, as published modules import them."""

from amplifier.errors import *  # noqa: F403 — ours are the published ones and more
