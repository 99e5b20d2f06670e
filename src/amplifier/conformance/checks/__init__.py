"""The checks, one file for each contract and kind of trouble; `_all_checks` beside this folder brings them together."""

__all__: list[str] = []
