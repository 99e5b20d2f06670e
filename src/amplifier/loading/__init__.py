"""From a module id to a mount function: find the module, import it and classify it."""

from .discovery import FoundModule
from .inspection import LoadedModule, load_thing
from .loader import AmplifierModuleLoader, ModuleLoader

__all__ = ["AmplifierModuleLoader", "FoundModule", "LoadedModule", "ModuleLoader", "load_thing"]
