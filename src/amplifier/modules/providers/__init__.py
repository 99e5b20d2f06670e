"""Providers. Several of them share the files that begin with an underscore."""

__all__: list[str] = []
