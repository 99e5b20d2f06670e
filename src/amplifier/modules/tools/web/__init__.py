"""tool-web: read a page of the public web, and nothing that only this machine can reach.

`_tool` is the tool, `_urls` decides where a URL may lead, `_fetcher` fetches one over a network
that connects to checked addresses only, and `_html_to_text` turns HTML into text. The HTTP client
is an extra, imported at mount. There is no search, which would need a service and a key.
"""

from ._tool import WebFetchTool, mount

__all__ = ["WebFetchTool", "mount"]

__amplifier_module_type__ = "tool"
