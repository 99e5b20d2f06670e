"""tool-web: read pages of the public web, but nothing that only this machine can reach."""

from ._tool import WebFetchTool, mount

__all__ = ["WebFetchTool", "mount"]

__amplifier_module_type__ = "tool"
