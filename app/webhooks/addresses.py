"""Which addresses may be sent to: those that the operator names, and nothing inside their network unless they say so.

A name is looked up once for each sending, every address that it stands for is judged, and the connection goes to the
address that was judged: a name that stands for another machine a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from app.settings import get_settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LONGEST_URL = 2_000
_PORTS = {"https": 443, "http": 80}
# IPv6 networks by which IPv4 addresses can be reached in disguise.
_DISGUISES = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]


class NotAllowed(Exception):
    """A sentence on why nothing is sent there."""


@dataclass(frozen=True)
class WebhookTarget:
    """Where a request goes: the address to connect to, and the name to ask for there."""

    scheme: str
    name: str
    address: str
    port: int
    path: str

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def host_header(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"


def check(url: str) -> SplitResult:
    """The parts of a URL that may be sent to by its looks; its name is not looked up."""
    if len(url) > LONGEST_URL or not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise NotAllowed(f"write the URL in at most {LONGEST_URL} ASCII characters, without spaces")
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        raise NotAllowed("this is not a URL; write it like https://planner.example/hooks") from None
    if parts.scheme not in _PORTS or not name:
        raise NotAllowed("the URL must begin with https:// and name a host, such as https://planner.example/hooks")
    if "@" in parts.netloc or parts.fragment:
        raise NotAllowed("leave user, password and fragment out of the URL; the signature says who sends")
    allowed = _named(get_settings().webhook_hosts)
    if not allowed:
        raise NotAllowed("this service sends no webhooks; its operator allows hosts by BCO_WEBHOOK_HOSTS")
    if not any(_fits(pattern, name, port or _PORTS[parts.scheme], parts.scheme) for pattern in allowed):
        raise NotAllowed("the operator does not allow this host and port; BCO_WEBHOOK_HOSTS names those allowed")
    return parts


def resolve(url: str) -> WebhookTarget:
    """Where to send to, by the addresses that its name stands for now."""
    parts = check(url)
    name, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        raise NotAllowed("the host's name stands for no address") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    inside = [_is_inside(address) for address in addresses]
    for address, is_inside in zip(addresses, inside, strict=True):
        if is_inside and not _is_allowed_inside(address):
            raise NotAllowed("the host is inside a private network, which BCO_WEBHOOK_NETWORKS does not allow")
    if parts.scheme == "http" and not all(inside):
        raise NotAllowed("the URL must begin with https://; plain http goes to allowed private networks alone")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, name, str(addresses[0]), port, path)


def _named(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _fits(pattern: str, name: str, port: int, scheme: str) -> bool:
    """``hooks.example``, ``*.example`` and ``hooks.example:8443`` or ``:*``; without a port, the scheme's own."""
    host, separator, wanted = pattern.rpartition(":")
    if not separator or "]" in wanted:
        host, wanted = pattern, str(_PORTS[scheme])
    host = host.strip("[]")
    same = name.endswith(host[1:]) and name != host[2:] if host.startswith("*.") else name == host
    return same and wanted in ("*", str(port))


def _is_inside(address: Address) -> bool:
    """Whether an address is of this machine or a private network, or none that anybody could have."""
    plain = _undisguised(address)
    disguised = any(plain in network for network in _DISGUISES if network.version == plain.version)
    return not plain.is_global or plain.is_multicast or plain.is_reserved or disguised


def _undisguised(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_allowed_inside(address: Address) -> bool:
    plain = _undisguised(address)
    return any(plain in ipaddress.ip_network(network) for network in _named(get_settings().webhook_networks))
