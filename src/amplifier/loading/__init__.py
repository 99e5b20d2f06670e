"""From module id to a mount function: find, import, classify, return a record.

A loader reads its coordinator's ``module-source-resolver`` mount point and nothing else of it.
"""

from ._catalogue import CatalogueEntry
from ._discovery import Listing, entry_points
from ._failure_reason import module_failure_reason
from ._loaded_module import TYPE_TO_MOUNT_POINT, LoadedModule, is_module_id, type_from_id
from ._loader import AmplifierModuleLoader, LoaderStatistics, ModuleLoader
from ._module_definition import Blueprint
from ._precedence import Pin, choose, find_pinned, is_built_in, read_pin

__all__ = [
    "TYPE_TO_MOUNT_POINT",
    "AmplifierModuleLoader",
    "Blueprint",
    "CatalogueEntry",
    "Listing",
    "LoadedModule",
    "LoaderStatistics",
    "ModuleLoader",
    "Pin",
    "choose",
    "entry_points",
    "find_pinned",
    "is_built_in",
    "is_module_id",
    "module_failure_reason",
    "read_pin",
    "type_from_id",
]
