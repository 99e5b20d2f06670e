"""Built-in modules. Each lives on `amplifier.contracts` alone, like anyone's module, and has a ``mount``.

The folder is the kind of module, the name in it the rest of the module id: `tool-bash` is `tools/bash`. What begins with
"_" is shared by the modules of its folder.
"""

__all__: list[str] = []
