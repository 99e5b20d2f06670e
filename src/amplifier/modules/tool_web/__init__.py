"""tool-web: read a page of the public web, and nothing that only this machine or its network can reach.

`_tool` is the tool, `_fetcher` follows one URL to its body, `_urls` and `_public_addresses` decide where it may lead, `_http_exchange` speaks
HTTP, `_body` bounds what comes back and `_html_to_text` turns HTML into text. What they need is an extra, imported at mount.

There is no search: that needs a service and a key.
"""

from ._mount import mount
from ._tool import WebFetchTool

__all__ = ["WebFetchTool", "mount"]

__amplifier_module_type__ = "tool"
