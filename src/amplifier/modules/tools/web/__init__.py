"""The module tool-web, which reads public web pages and nothing that only this machine reaches."""

from ._tool import WebFetchTool, mount

__all__ = ["WebFetchTool", "mount"]

__amplifier_module_type__ = "tool"
