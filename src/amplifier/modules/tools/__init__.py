"""Tools: one file or folder per module. Files that begin with "_" are shared by several of them."""

__all__: list[str] = []
