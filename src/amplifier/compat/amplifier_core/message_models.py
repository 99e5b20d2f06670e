"""Messages, requests and answers, under their published address."""

from amplifier.models import *  # noqa: F403
