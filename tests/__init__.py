"""The suite; one folder per room of ``src/amplifier``, helpers in ``_support``."""
