"""Messages, requests and answers, as published modules import them."""

from amplifier.models import *  # noqa: F403 — ours are the published ones and more
