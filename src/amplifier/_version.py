"""The version of this package, the same as in its metadata, reading which takes longer than the command line does."""

__version__ = "0.1.0"
