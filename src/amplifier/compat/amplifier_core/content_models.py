"""Streamed content, as published modules import it."""

from amplifier.models import *  # noqa: F403 — ours are the published ones and more
