"""From module id to a mount function: find, import, classify, return a record.

Above: `amplifier.kernel`, whose session mounts what is returned here. Below: models and errors. A loader reads its
coordinator's ``module-source-resolver`` mount point and touches nothing else of it.
"""

from ._loader import AmplifierModuleLoader, LoaderStatistics, ModuleLoader, module_failure_reason
from ._record import TYPE_TO_MOUNT_POINT, LoadedModule

__all__ = [
    "TYPE_TO_MOUNT_POINT",
    "AmplifierModuleLoader",
    "LoadedModule",
    "LoaderStatistics",
    "ModuleLoader",
    "module_failure_reason",
]
