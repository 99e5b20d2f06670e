"""Streamed content, under its published address."""

from amplifier.models import *  # noqa: F403
