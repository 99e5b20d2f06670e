"""Results and descriptions, under their published address."""

from amplifier.models import *  # noqa: F403
