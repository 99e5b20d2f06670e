"""The options, the form of a URL, and the check of hosts, ports and addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

import attrs

from ..._shared.configuration import Kind, existing_file, list_of, option, seconds, whole_number
from ..._shared.failure import ToolFailure, shown

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST = r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?"
_HOST_PATTERN = re.compile(rf"(\*\.)?{_HOST}|[0-9a-f:]+")
_HOST_AND_PORT = re.compile(rf"(?:({_HOST})|\[([0-9a-f:]+)\]):([0-9]{{1,5}})")


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _is_host_pattern(value: Any) -> bool:
    return isinstance(value, str) and _HOST_PATTERN.fullmatch(value) is not None


def _is_host_and_port(value: Any) -> bool:
    return (
        isinstance(value, str)
        and (match := _HOST_AND_PORT.fullmatch(value)) is not None
        and _is_port(int(match[4]))
    )


def _split(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


_hosts = list_of("hosts in lower case, such as example.org or *.example.org", _is_host_pattern)
_hosts_and_ports = attrs.evolve(
    list_of("hosts with ports, such as localhost:8000 or [::1]:8000", _is_host_and_port),
    convert=lambda value: frozenset(map(_split, value)),
)
_ports = attrs.evolve(list_of("ports", _is_port), convert=frozenset)
_user_agent = Kind(
    "a short ASCII text",
    lambda value: (
        isinstance(value, str) and 0 < len(value) <= 200 and value.isascii() and value.isprintable()
    ),
)


@attrs.frozen(kw_only=True)
class WebOptions:
    """The hosts that may be fetched from, and the limits of one fetch.

    Attributes:
        allow_hosts: The only hosts that may be fetched, ``*.`` for all below one. Empty for every
            public host.
        allow_private: Pairs of host and port that may be fetched from although they aren't public.
        ports: The only ports of public hosts.
        timeout: Seconds for one fetch: name resolution, redirects and the whole body.
        max_bytes: Maximum size of the body after decompression.
        max_chars: Maximum number of characters in one result.
        max_redirects: Maximum number of redirects.
        user_agent: The User-Agent header.
        ca_file: A file with more certificates to trust.
    """

    allow_hosts: tuple[str, ...] = option(_hosts, default=(), restricts=True)
    allow_private: frozenset[tuple[str, int]] = option(_hosts_and_ports, default=frozenset())
    ports: frozenset[int] = option(_ports, default=frozenset({80, 443, 8080, 8443}), restricts=True)
    timeout: float = option(seconds, default=30.0)
    max_bytes: int = option(whole_number(1), default=2_000_000)
    max_chars: int = option(whole_number(1), default=50_000)
    max_redirects: int = option(whole_number(0), default=5)
    user_agent: str = option(_user_agent, default="amplifier-web-fetch")
    ca_file: Path | None = option(existing_file, default=None)


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
    "fe80::/10": "a link-local address",
    "ff00::/8": "a multicast address",
    "2001::/23": "a reserved address",
    "2001:db8::/32": "an address for documentation",
    "2002::/16": "an IPv4 address in the form of IPv6",
    "3fff::/20": "an address for documentation",
}
_NETWORKS: Final = [(ipaddress.ip_network(network), why) for network, why in _REFUSED.items()]
# This is the upper half of an ISATAP interface: 0000:5efe, or 0200:5efe for a global IPv4 address.
# The lower half is the IPv4 address, to which a router of any prefix may forward the packet (RFC
# 5214).
_ISATAP: Final = 0x00005EFE
_EXCEPT_GLOBAL_BIT: Final = 0xFDFFFFFF
_GLOBAL_IPV6: Final = ipaddress.ip_network("2000::/3")
_NEVER: Final = ("link-local", "multicast", "unspecified", "cloud's")


# ── public addresses ──────────────────────────────────────────────────────────────────────────────
# ``ipaddress.is_global`` differs between releases of Python, so the table is our own. IPv6 is
# refused except for global unicast. So every form that hides an IPv4 address (mapped, compatible,
# NAT64, Teredo, 6to4, ISATAP) is refused, even for a public address.


def read_address(text: str) -> Address | None:
    """Read an address in its usual form. Return None for other text, or if it has a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else address


def reason_to_refuse(address: Address) -> str | None:
    """Return why an address is refused, or None if it is public."""
    for network, why in _NETWORKS:
        if address in network:
            return why
    if address.version == 6 and address not in _GLOBAL_IPV6:
        return "a reserved address"
    if address.version == 6 and int(address) >> 32 & _EXCEPT_GLOBAL_BIT == _ISATAP:
        return _REFUSED["2002::/16"]
    return None


def is_never_allowed(address: Address) -> bool:
    """Return whether an address is refused even for a name that may be private."""
    why = reason_to_refuse(address)
    return why is not None and any(word in why for word in _NEVER)


_MAX_URL = 8192
_PORTS = {"http": 80, "https": 443}
_UNUSABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_IN_PATH = "/%:@!$&'()*+,;=~"
_IN_QUERY = "?" + _IN_PATH
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def check_place(host: str, port: int, options: WebOptions) -> None:
    """Check a host and port before the name is resolved.

    Raises:
        ToolFailure: The options forbid the host or the port.
    """
    if (host, port) in options.allow_private:
        return
    if options.allow_hosts and not any(_matches(host, pattern) for pattern in options.allow_hosts):
        raise ToolFailure(
            "ForbiddenHost", f"{shown(host)} is not one of the hosts this session may fetch from"
        )
    if port not in options.ports:
        ports = ", ".join(map(str, sorted(options.ports)))
        raise ToolFailure("ForbiddenPort", f"port {port} is not one of the allowed ports: {ports}")


def check_addresses(
    host: str, port: int, addresses: Collection[Address], options: WebOptions
) -> None:
    """Refuse a host if any of its addresses isn't public.

    Raises:
        ToolFailure: An address isn't public. The message names its kind, but not the address.
    """
    is_literal = read_address(host) is not None
    if (host, port) not in options.allow_private:
        refused = [address for address in addresses if reason_to_refuse(address)]
    else:
        refused = [] if is_literal else list(filter(is_never_allowed, addresses))
    if refused:
        verb = "is" if is_literal else "leads to"
        raise ToolFailure(
            "ForbiddenAddress", f"{shown(host)} {verb} {reason_to_refuse(refused[0])}"
        )


def read_url(text: str, *, base: str | None = None) -> str:
    """Return a URL in its usual form: ASCII, and without a user, a password or a fragment.

    The host is in lower case and doesn't end with a dot. An address is in its usual form.

    Args:
        text: The text from the model or from a server.
        base: The URL that a relative URL is relative to.

    Raises:
        ToolFailure: The text isn't a URL of the web, or it can be read in two ways.
    """
    subject = shown(ascii(text)[1:-1], 200)
    if not text or len(text) > _MAX_URL or _UNUSABLE.search(text):
        raise ToolFailure(
            "InvalidURL",
            f"{subject}: empty, very long, or with spaces, backslashes or control characters",
        )
    try:
        url = urlsplit(text if base is None else urljoin(base, text))
        explicit_port = url.port
    except ValueError as error:
        raise ToolFailure("InvalidURL", f"{subject}: {shown(str(error), 200)}") from None
    if url.scheme not in _PORTS:
        raise ToolFailure(
            "InvalidURL", f"{subject}: expected http:// or https://, got {shown(url.scheme, 40)!r}"
        )
    if "@" in url.netloc:
        raise ToolFailure(
            "InvalidURL", f"{subject}: a user name or password before the host is not accepted"
        )
    host = _read_host(url.hostname or "", subject, in_brackets=url.netloc.startswith("["))
    port = _PORTS[url.scheme] if explicit_port is None else explicit_port
    if port == 0:
        raise ToolFailure("InvalidURL", f"{subject}: there is no port 0")
    authority = f"[{host}]" if ":" in host else host
    authority = authority if port == _PORTS[url.scheme] else f"{authority}:{port}"
    path = quote(url.path, safe=_IN_PATH) or "/"
    path = f"{path}?{quote(url.query, safe=_IN_QUERY)}" if url.query else path
    return f"{url.scheme}://{authority}{path}"


def _read_host(text: str, subject: str, *, in_brackets: bool) -> str:
    host = text.lower().removesuffix(".")
    literal = read_address(host)
    if in_brackets or (literal is not None and literal.version == 6):
        if literal is None or literal.version != 6 or not in_brackets:
            raise ToolFailure(
                "InvalidURL",
                f"{subject}: only an IPv6 address is written in brackets, and always is",
            )
        return str(literal)
    if literal is None:
        import idna  # noqa: PLC0415 — an extra

        try:
            host = host if host.isascii() else idna.encode(host).decode("ascii")
        except idna.IDNAError as error:
            raise ToolFailure("InvalidURL", f"{subject}: {shown(str(error), 200)}") from None
        _check_name(host, subject)
    return host


def _check_name(host: str, subject: str) -> None:
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ToolFailure("InvalidURL", f"{subject}: {shown(host, 80)!r} is not the name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        # 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to some resolvers and nothing to others.
        raise ToolFailure("InvalidURL", f"{subject}: write an address as four decimal numbers")


def _matches(host: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern
