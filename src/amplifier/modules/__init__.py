"""Built-in modules. Each lives on `amplifier.contracts` alone, like anyone's module, and has a ``mount``.

The file name is the module id with "_" for "-"; files that start with "_" are shared parts, not modules.
"""

__all__: list[str] = []
