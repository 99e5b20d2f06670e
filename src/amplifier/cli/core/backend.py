"""The event loop that a command runs on."""

from __future__ import annotations

from amplifier.errors import MissingExtraError

__all__ = ["require_backend"]


def require_backend(name: str) -> None:
    """Check that the backend is installed.

    Raises:
        MissingExtraError: It is trio, which belongs to an extra and is not there.
    """
    if name == "trio":
        try:
            import trio  # noqa: F401, PLC0415  # belongs to an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError("--backend trio", extra="trio", missing="trio") from error
