"""Published Amplifier modules run unchanged: ``import amplifier_core`` gives this kernel.

    install()        make the name importable and give the models the published form
    uninstall()      remove both
    is_installed()   whether they are installed

A `ModuleLoader` installs the alias when a module that it loads imports ``amplifier_core`` and no other package of that name exists. A command
runs with it by ``python -m amplifier.compat``, a test suite by ``pytest -p amplifier.compat.pytest``. What differs from
the published kernel on purpose is listed in docs/reference/compat.md.
"""

from ._alias import install, is_installed, uninstall

__all__ = ["install", "is_installed", "uninstall"]
