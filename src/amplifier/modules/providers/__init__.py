"""Providers: one file or folder per module; what begins with "_" is shared by several of them."""

__all__: list[str] = []
