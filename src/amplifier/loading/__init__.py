"""From module id to a mount function: find, import, classify, return a record.

`ModuleLoader.locate` finds a module and gives a `FoundModule`, `ModuleLoader.load` imports it and gives a `LoadedModule`. A loader
reads its coordinator's ``module-source-resolver`` mount point and nothing else of it.
"""

from .discovery import FoundModule
from .inspection import LoadedModule, load_thing
from .loader import AmplifierModuleLoader, ModuleLoader

__all__ = ["AmplifierModuleLoader", "FoundModule", "LoadedModule", "ModuleLoader", "load_thing"]
