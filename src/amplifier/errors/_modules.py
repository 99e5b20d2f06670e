"""Errors of finding, loading and mounting modules."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from ._base import AmplifierError


class MissingExtraError(AmplifierError, ImportError):
    """A feature needs a package that the base install does not bring.

    Attributes:
        feature: What was asked for.
        extra: The extra that brings it: ``pip install 'amplifier[<extra>]'``.
        missing: The package that could not be imported, where it is known.
    """

    def __init__(self, feature: str, *, extra: str, missing: str | None = None) -> None:
        found = f" ({missing} is not installed)" if missing else ""
        super().__init__(f"{feature} needs an optional part{found}; install it with: pip install 'amplifier[{extra}]'")
        self.feature = feature
        self.extra = extra
        self.missing = missing

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_missing_extra, (self.feature, self.extra, self.missing), self.__dict__)


def _rebuild_missing_extra(feature: str, extra: str, missing: str | None) -> MissingExtraError:
    return MissingExtraError(feature, extra=extra, missing=missing)


class ModuleNotFoundError(AmplifierError, builtins.ModuleNotFoundError):
    """No module of this id was found.

    Attributes:
        module_id: What was asked for.
        searched: Where we looked, in order.
        suggestion: The nearest id that does exist, if one is near.
    """

    def __init__(
        self,
        message: str = "",
        *,
        module_id: str | None = None,
        searched: Sequence[str] = (),
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.module_id = module_id
        self.searched: tuple[str, ...] = tuple(searched)
        self.suggestion = suggestion


class ModuleLoadError(AmplifierError):
    """The module was found but could not be imported, classified or mounted; ``__cause__`` is the reason.

    Attributes:
        module_id: The module that failed.
        reason_code: One of ``missing_source``, ``invalid_package_layout``, ``invalid_entry_point``,
            ``invalid_module_metadata``, ``validation_failed``, ``mount_failed``, ``deadline``, ``conflict``, ``unknown``.
    """

    def __init__(self, message: str = "", *, module_id: str | None = None, reason_code: str = "unknown") -> None:
        super().__init__(message)
        self.module_id = module_id
        self.reason_code = reason_code


class ModuleConflictError(ModuleLoadError):
    """Two different sources claim one module id or one package name; the message names both."""

    def __init__(self, message: str = "", *, module_id: str | None = None, reason_code: str = "conflict") -> None:
        super().__init__(message, module_id=module_id, reason_code=reason_code)
