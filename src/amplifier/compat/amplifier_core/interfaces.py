"""What a module must be, as published modules import it."""

from amplifier.contracts import *  # noqa: F403 — ours are the published ones and more
from amplifier.models import *  # noqa: F403 — as above
