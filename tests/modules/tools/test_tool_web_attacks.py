"""tool-web under attack: no URL, redirect or name server leads it to where only this machine or its network can reach."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.models import ToolResult
from amplifier.modules._shared.failure import ToolFailure
from amplifier.modules.tools import web as tool_web
from amplifier.modules.tools.web import WebFetchTool
from amplifier.modules.tools.web._fetcher import Fetcher
from amplifier.modules.tools.web._urls import WebOptions, read_url, reason_to_refuse
from tests.modules.tools.test_tool_filesystem import Desk
from tests.modules.tools.test_tool_web import Site

PUBLIC = "93.184.215.14"

# What a name server may answer; every other name is public.
NAMES: dict[str, Sequence[str]] = {
    "localhost": ["127.0.0.1", "::1"],
    "localtest.me": ["127.0.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "metadata.google.internal": ["169.254.169.254"],
    "metadata": ["169.254.169.254"],
    "instance-data.ec2.internal": ["169.254.169.254"],
    "kubernetes.default.svc": ["10.96.0.1"],
    "host.docker.internal": ["192.168.65.2"],
    "router.local": ["192.168.0.1"],
    "mixed.example": [PUBLIC, "10.0.0.1"],
    "mixed-late.example": [
        PUBLIC,
        "93.184.215.15",
        "93.184.215.16",
        "93.184.215.17",
        "93.184.215.18",
        "127.0.0.1",
    ],
    "mapped.example": ["::ffff:127.0.0.1"],
    "zone.example": ["fe80::1%eth0"],
    "six.example": ["::1"],
    "none.example": [],
    "nonsense.example": ["not an address"],
    "xn--lcalhost-54a.example": ["127.0.0.1"],
}

# As hosts of URLs: each is refused by what it is.
ADDRESSES = [
    *(
        "127.0.0.1",
        "127.0.0.2",
        "127.1.2.3",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
    ),
    *(
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "192.168.255.255",
        "169.254.169.254",
        "169.254.0.1",
    ),
    *(
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
    ),
    *("198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *(
        "255.255.255.255",
        "168.63.129.16",
        "192.88.99.1",
        "127.0.0.1.",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
    ),
    *(
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:93.184.215.14]",
        "[::127.0.0.1]",
    ),
    *(
        "[::7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
    ),
    *("[2600:1f18::5efe:7f00:1]", "[2600::200:5efe:a9fe:a9fe]", "[2a00:1:2:3:0:5efe:10.0.0.1]"),
    *(
        "[2002:a00:1::1]",
        "[2001:0:7f00:1::]",
        "[2001::1]",
        "[2001:db8::1]",
        "[2001:10::1]",
        "[2001:20::1]",
    ),
    *(
        "[fe80::1]",
        "[febf::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fdff::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[ff0e::1]",
    ),
    *("[100::1]", "[3fff::1]", "[4000::1]", "[5f00::1]", "[::ffff:0:127.0.0.1]"),
    "[0000:0000:0000:0000:0000:ffff:7f00:0001]",
]
# Of addresses; some resolvers take them, so we do not ask any.
SPELLINGS = [
    *(
        "2130706433",
        "017700000001",
        "0x7f000001",
        "0x7f.1",
        "0x7F.0x0.0x0.0x1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
    ),
    *(
        "0177.0.0.01",
        "00000177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.1",
        "127.0.0.256",
        "1",
        "0",
        "0x",
        "3232235521",
    ),
    *("４.example", "１２７.0.0.1", "127。0。0。1", "①②⑦.⓪.⓪.①", "%31%32%37.0.0.1", "127.0.0.1%00"),
    *(
        "127.0.0.1%2eexample.com",
        "[127.0.0.1]",
        "[::1%25lo]",
        "[::1%lo]",
        "[fe80::1%25eth0]",
        "[::1]x",
        "[",
        "[]",
    ),
    *(
        "[::g]",
        "[v1.x]",
        "::1",
        "[::1",
        "",
        ".",
        "..",
        "a..b",
        "-a",
        "a-",
        "a_.-b",
        "ex ample",
        "ex\tample",
    ),
    *(
        "ex\nample",
        "ex\0ample",
        "a" * 64,
        "a." * 130 + "b",
        "exa\u00admple.com",
        "ｌocalhost",
        "localhost\u2044x",
    ),
    *("loca\u200dlhost", "\ud800", "a;b", "a,b", "a&b", "a%b", "a*b", "a'b"),
]
SHAPES = [
    *(
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://example.com@127.0.0.1/",
    ),
    *("http://@127.0.0.1/", "http://127.0.0.1#@example.com/", "http://127.0.0.1?@example.com/"),
    *(
        "http://127.0.0.1\\@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://127.0.0.1/@example.com",
    ),
    *("http:\\\\127.0.0.1", "http:/\\127.0.0.1/", "http://127.0.0.1:80@example.com:80/"),
    *(
        "http://example.com:80@127.0.0.1:80/",
        "http://example.com:@127.0.0.1/",
        "file:///etc/passwd",
    ),
    *(
        "file://localhost/etc/passwd",
        "FILE:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ftp://example.com/",
    ),
    *("dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "jar:http://127.0.0.1!/", "data:text/html,x"),
    *("javascript:alert(1)", "view-source:http://example.com/", "unix:/var/run/docker.sock"),
    *(
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/x",
        "ws://example.com/",
        "tftp://127.0.0.1/",
        "netdoc:///etc/passwd",
    ),
    *(
        "blob:http://127.0.0.1/",
        "about:blank",
        "//127.0.0.1/",
        "127.0.0.1",
        "localhost",
        "/etc/passwd",
    ),
    *(
        "http:127.0.0.1",
        "http:///127.0.0.1",
        "http://",
        "http:",
        "://x",
        "http//x",
        " http://127.0.0.1/",
    ),
    *("http://\t/", "http://example.com:0/", "http://example.com:65536/", "http://example.com:-1/"),
    *(
        "http://example.com:x/",
        "http://example.com:8 0/",
        "http://example.com:80:80/",
        "http://example.com:\u0661/",
    ),
    *("http://example.com/\r\nHost: 127.0.0.1", "http://example.com/ x"),
]
PORTS = [1, 22, 25, 110, 143, 445, 2375, 3306, 5432, 6379, 9200, 11211, 27017, 65535]
URLS = [
    *SHAPES,
    *(f"http://{host}/latest/meta-data/" for host in (*ADDRESSES, *SPELLINGS, *NAMES)),
    *(f"https://{host}:8443/" for host in ADDRESSES[:12]),
    *(f"http://example.com:{port}/" for port in PORTS),
]


class Guarded(httpcore2.AsyncNetworkBackend):
    """A network whose names are `NAMES`, and which notes every connection instead of making it."""

    def __init__(self, answers: Any = None, **options: Any) -> None:
        self.dialled: list[tuple[str, int]] = []
        self.asked: list[str] = []
        self._answers = answers
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        fetcher = Fetcher(WebOptions(**options), context, resolver=self.resolve, network=self)
        self.tool = WebFetchTool(lambda: fetcher, WebOptions(**options))

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if self._answers is not None:
            return self._answers(host)
        return NAMES.get(host, [PUBLIC])

    async def connect_tcp(self, host: str, port: int, *args: Any) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((host, port))
        raise httpcore2.ConnectError

    async def fetch(self, url: str) -> ToolResult:
        result = await self.tool.execute({"url": url})
        assert not result.success
        return result


async def test_urls_never_lead_inside():
    kinds = ("InvalidURL", "ForbiddenAddress", "ForbiddenPort", "InvalidInput")
    for url in URLS:
        guarded = Guarded()
        result = await guarded.fetch(url)
        assert guarded.dialled == [], ascii(url)
        assert result.error is not None, ascii(url)
        assert result.error["type"] in kinds, (ascii(url), result.error)


def test_number_of_attacks_is_as_stated():
    assert len(set(URLS)) >= 150


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("http://example.com/", PUBLIC, 80),
        ("HTTPS://EXAMPLE.COM./x", PUBLIC, 443),
        ("http://example.com:8080/a%20b?c=d", PUBLIC, 8080),
        ("http://1.1.1.1/", "1.1.1.1", 80),
        ("http://[2606:4700:4700::1111]/", "2606:4700:4700::1111", 80),
        ("http://bücher.example/", PUBLIC, 80),
        ("http://10.example.com/", PUBLIC, 80),  # whose names a filter by substring would refuse
        ("http://localhost.example.com/", PUBLIC, 80),
        ("http://192.168.example.com/", PUBLIC, 80),
        ("http://my_host.example/", PUBLIC, 80),
        ("http://172.15.255.255/", "172.15.255.255", 80),
        ("http://172.32.0.1/", "172.32.0.1", 80),
        ("http://100.63.255.255/", "100.63.255.255", 80),
        ("http://128.0.0.1/", "128.0.0.1", 80),
    ],
)
async def test_connection_uses_checked_address(url, address, port):
    guarded = Guarded()
    result = await guarded.fetch(url)
    assert result.error is not None
    assert result.error["type"] == "ConnectionFailed"
    assert guarded.dialled == [(address, port)]


async def test_first_name_server_answer_is_used():
    answers = [[PUBLIC], ["127.0.0.1"]]
    guarded = Guarded(answers=lambda host: answers.pop(0))
    await guarded.fetch("http://rebind.example/")
    assert guarded.asked == ["rebind.example"]
    assert guarded.dialled == [(PUBLIC, 80)]


async def test_number_of_tried_addresses_is_limited():
    many = [f"93.184.215.{n}" for n in range(1, 30)]
    guarded = Guarded(answers=lambda host: many)
    await guarded.fetch("http://many.example/")
    assert guarded.dialled == [(address, 80) for address in many[:4]]


async def test_private_address_details_stay_hidden():
    result = await Guarded().fetch("http://kubernetes.default.svc/")
    assert result.error == {
        "message": "kubernetes.default.svc leads to a private address",
        "type": "ForbiddenAddress",
    }


TARGETS = [
    *("http://127.0.0.1:PORT/secret", "//127.0.0.1:PORT/secret", "http://localhost:PORT/secret"),
    *("http://[::1]:PORT/secret", "http://0.0.0.0:PORT/secret", "http://2130706433:PORT/secret"),
    *(
        "http://0x7f.1:PORT/secret",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "gopher://127.0.0.1:PORT/",
    ),
    *(
        "http://x@127.0.0.1:PORT/secret",
        "http://[::ffff:127.0.0.1]:PORT/secret",
        "http://127.1:PORT/secret",
    ),
    *("\\\\127.0.0.1:PORT\\secret", "http://in side/"),
]


@pytest.mark.parametrize("target", TARGETS)
async def test_redirect_is_checked_like_url(target):
    outside, inside = Site(), Site()
    inside.serve("/secret", b"secret")
    with outside.running() as port, inside.running() as secret_port:
        outside.serve("/", status=302, Location=target.replace("PORT", str(secret_port)))
        desk = await Desk.open(None, tool_web, allow_private=[f"127.0.0.1:{port}"])
        kind, _ = await desk.fail("web_fetch", url=f"http://127.0.0.1:{port}/")
    assert kind in ("ForbiddenAddress", "ForbiddenPort", "InvalidURL")
    assert len(outside.requests) == 1
    assert inside.requests == []


async def test_every_hop_is_checked_anew():
    """Ten hops over names of which the last turns private only when it is asked for."""
    site = Site()
    with site.running() as port:
        for number in range(9):
            site.serve(
                f"/{number}",
                status=302,
                Location=f"http://hop{number + 1}.example:{port}/{number + 1}",
            )
        site.serve("/9", b"secret")
        places = frozenset((f"hop{n}.example", port) for n in range(9))
        options = WebOptions(allow_private=places, max_redirects=10)

        async def resolve(host: str, to: int) -> list[str]:
            return ["127.0.0.1"]

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        fetcher = Fetcher(options, context, resolver=resolve)
        result = await WebFetchTool(lambda: fetcher, options).execute(
            {"url": f"http://hop0.example:{port}/0"}
        )
    assert result.error is not None
    assert result.error["type"] == "ForbiddenPort"
    assert [path for path, _ in site.requests] == [f"/{number}" for number in range(9)]
    assert [headers["Host"] for _, headers in site.requests] == [
        f"hop{n}.example:{port}" for n in range(9)
    ]


async def test_private_place_needs_exact_spelling_and_port():
    places = frozenset({("localhost", 8000), ("10.0.0.1", 80), ("::1", 80)})
    cases = {
        "http://localhost:8000/": True,
        "http://LOCALHOST.:8000/": True,
        "http://10.0.0.1/": True,
        "http://[::1]/": True,
        "http://localhost:8080/": False,
        "http://localhost/": False,
        "http://127.0.0.1:8000/": False,
        "http://localtest.me:8000/": False,
        "https://10.0.0.1/": False,
        "http://10.0.0.2/": False,
        "http://[::1]:8080/": False,
    }
    for url, is_allowed in cases.items():
        guarded = Guarded(allow_private=places)
        await guarded.fetch(url)
        assert bool(guarded.dialled) == is_allowed, url


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "::", "168.63.129.16"]
)
async def test_private_name_never_leads_to_credentials(address):
    guarded = Guarded(
        answers=lambda host: [address], allow_private=frozenset({("intranet.example", 80)})
    )
    result = await guarded.fetch("http://intranet.example/")
    assert guarded.dialled == []
    assert (result.error or {})["type"] == "ForbiddenAddress"


async def test_host_list_excludes_all_others():
    for host, is_allowed in {
        "example.org": True,
        "EXAMPLE.org.": True,
        "www.example.org": False,
        "a.example.net": True,
        "a.b.example.net": True,
        "example.net": False,
        "evilexample.net": False,
        "example.org.evil.example": False,
        PUBLIC: False,
    }.items():
        guarded = Guarded(allow_hosts=("example.org", "*.example.net"))
        result = await guarded.fetch(f"http://{host}/")
        assert bool(guarded.dialled) == is_allowed, host
        if not is_allowed:
            assert (result.error or {})["type"] == "ForbiddenHost"
    guarded = Guarded(allow_hosts=("localhost",))
    await guarded.fetch("http://localhost/")
    assert guarded.dialled == []  # to be on the list is not to be allowed inside


def flags_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[str]:
    flags = (
        "is_private",
        "is_loopback",
        "is_link_local",
        "is_multicast",
        "is_reserved",
        "is_unspecified",
    )
    return [flag for flag in flags if getattr(address, flag)]


@given(number=st.integers(0, 2**32 - 1))
def test_public_addresses_are_not_private_in_python(number):
    address = ipaddress.IPv4Address(number)
    if reason_to_refuse(address) is None:
        assert flags_of(address) == []


@given(
    number=st.integers(0, 2**128 - 1) | st.integers(0, 2**32 - 1).map(lambda n: n | 0xFFFF << 32)
)
def test_embedding_ipv6_addresses_are_not_public(number):
    address = ipaddress.IPv6Address(number)
    if reason_to_refuse(address) is None:
        assert address.ipv4_mapped is None
        assert address.sixtofour is None
        assert address.teredo is None
        assert not address.is_site_local
        assert flags_of(address) == []


@given(text=st.text("htps:/.@#?[]%\\127x0é ", max_size=30))
def test_url_parsing_is_stable(text):
    try:
        url = read_url(f"http://{text}")
    except ToolFailure:
        return
    assert read_url(url) == url
    assert url.isascii()


@given(text=st.text("htps:/.@#?[]%\\127x0é ", max_size=30))
def test_the_client_connects_to_the_host_that_was_read(text):
    try:
        url = read_url(f"http://{text}")
    except ToolFailure:
        return
    sent = httpx2.URL(url)
    assert sent.raw_host.decode() == urlsplit(url).hostname
    assert sent.port == urlsplit(url).port
    assert read_url(str(sent)) == str(sent)
