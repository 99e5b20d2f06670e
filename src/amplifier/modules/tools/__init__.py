"""Tools: one file or folder per module; files with a leading "_" are shared by several of them."""

__all__: list[str] = []
