"""The errors that providers raise, under their published address."""

from amplifier.errors import *  # noqa: F403
