"""The checks, in one package for each contract; `all_checks` imports them all."""

__all__: list[str] = []
