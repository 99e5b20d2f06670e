"""Built-in modules. Each has a ``mount`` and depends only on `amplifier.contracts`.

A module's id consists of its folder and its file: `tool-bash` is `tools/bash`. The modules of a
folder share the files that begin with an underscore.
"""

__all__: list[str] = []
