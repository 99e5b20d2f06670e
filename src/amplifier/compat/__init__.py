"""Published Amplifier modules run unchanged: ``import amplifier_core`` gives this kernel.

    install()        make the name importable and give the models the published form
    uninstall()      take both away again
    is_installed()   whether they are there

A `ModuleLoader` installs by itself when a module it loads asks for ``amplifier_core`` and nobody else has one. A command
runs with it by ``python -m amplifier.compat``, a test suite by ``pytest -p amplifier.compat.pytest``. What differs from
the published kernel on purpose is listed in docs/reference/compat.md.
"""

from ._alias.install import install, is_installed, uninstall

__all__ = ["install", "is_installed", "uninstall"]
