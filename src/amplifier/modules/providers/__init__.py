"""Providers. Files that begin with an underscore are shared by several of them."""

__all__: list[str] = []
