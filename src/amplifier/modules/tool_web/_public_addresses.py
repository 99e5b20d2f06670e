"""Which addresses belong to the public internet; pure.

A table of its own and not ``ipaddress.is_global``, whose answers differ between releases of Python. IPv6 is refused but for
what is handed out as global unicast, so every form that hides an IPv4 address (mapped, compatible, NAT64, Teredo, 6to4) is
refused, whatever it hides.
"""

from __future__ import annotations

import ipaddress
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_REFUSED: Final = {
    "0.0.0.0/8": "an unspecified address",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "a provider's internal address",
    "127.0.0.0/8": "this machine itself",
    "168.63.129.16/32": "a cloud's internal service",
    "169.254.0.0/16": "a link-local address, where clouds offer credentials",
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "a reserved address",
    "192.0.2.0/24": "an address for documentation",
    "192.88.99.0/24": "a relay to other addresses",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "an address for benchmarks",
    "198.51.100.0/24": "an address for documentation",
    "203.0.113.0/24": "an address for documentation",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
    "::/128": "an unspecified address",
    "::1/128": "this machine itself",
    "::ffff:0:0/96": "an IPv4 address in the form of IPv6",
    "64:ff9b::/32": "an IPv4 address behind a translator",
    "fc00::/7": "a private address",
    "fe80::/10": "a link-local address",
    "ff00::/8": "a multicast address",
    "2001::/23": "a reserved address",
    "2001:db8::/32": "an address for documentation",
    "2002::/16": "an IPv4 address in the form of IPv6",
    "3fff::/20": "an address for documentation",
}
_NETWORKS: Final = [(ipaddress.ip_network(network), why) for network, why in _REFUSED.items()]
_GLOBAL_IPV6: Final = ipaddress.ip_network("2000::/3")
_NEVER: Final = ("link-local", "multicast", "unspecified", "cloud's")


def read_address(text: str) -> Address | None:
    """The address a text spells in its usual form; None for anything else, forms with a zone included."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else address


def reason_to_refuse(address: Address) -> str | None:
    """Why an address is refused; None if it is public."""
    for network, why in _NETWORKS:
        if address in network:
            return why
    if address.version == 6 and address not in _GLOBAL_IPV6:
        return "a reserved address"
    return None


def is_never_allowed(address: Address) -> bool:
    """Whether an address is refused even for a name that the plan lets be private."""
    why = reason_to_refuse(address)
    return why is not None and any(word in why for word in _NEVER)
