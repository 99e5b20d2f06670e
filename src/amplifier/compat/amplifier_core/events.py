"""The names of events, under their published address."""

from amplifier.events import *  # noqa: F403
