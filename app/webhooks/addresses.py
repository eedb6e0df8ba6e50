"""Allowed webhook addresses: hosts that the operator names, and private networks only if allowed.

A name is resolved once for each delivery, all its addresses are checked, and the connection goes to a checked address,
so that DNS rebinding does not help an attacker.
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
# IPv6 networks that lead to IPv4 addresses.
_TUNNELS = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]


class AddressNotAllowed(Exception):
    """Nothing may be sent to this address; the sentence says why."""


@dataclass(frozen=True)
class WebhookTarget:
    """The address to connect to, and the host name to send."""

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
    """Check a URL without resolving its name; return its parts."""
    if len(url) > LONGEST_URL or not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise AddressNotAllowed(f"write the URL in at most {LONGEST_URL} ASCII characters, without spaces")
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        raise AddressNotAllowed("this is not a URL; write it like https://planner.example/hooks") from None
    if parts.scheme not in _PORTS or not name:
        raise AddressNotAllowed(
            "the URL must begin with https:// and name a host, such as https://planner.example/hooks"
        )
    if "@" in parts.netloc or parts.fragment:
        raise AddressNotAllowed("leave user, password and fragment out of the URL; the signature identifies the sender")
    allowed = _split(get_settings().webhook_hosts)
    if not allowed:
        raise AddressNotAllowed("this service sends no webhooks; its operator can allow hosts with BCO_WEBHOOK_HOSTS")
    if not any(_matches(pattern, name, port or _PORTS[parts.scheme], parts.scheme) for pattern in allowed):
        raise AddressNotAllowed(
            "this host and port are not allowed; the operator names allowed ones in BCO_WEBHOOK_HOSTS"
        )
    return parts


def resolve(url: str) -> WebhookTarget:
    """Resolve a URL to a checked address."""
    parts = check(url)
    name, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
    try:
        entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        raise AddressNotAllowed("the host name cannot be resolved") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
    private = [_is_private(address) for address in addresses]
    for address, is_private in zip(addresses, private, strict=True):
        if is_private and not _is_allowed_private(address):
            raise AddressNotAllowed("the host is in a private network that BCO_WEBHOOK_NETWORKS does not allow")
    if parts.scheme == "http" and not all(private):
        raise AddressNotAllowed("the URL must begin with https://; http is allowed for private networks only")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, name, str(addresses[0]), port, path)


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _matches(pattern: str, name: str, port: int, scheme: str) -> bool:
    """``hooks.example``, ``*.example`` and ``hooks.example:8443`` or ``:*``; without a port, the scheme's own."""
    host, separator, wanted = pattern.rpartition(":")
    if not separator or "]" in wanted:
        host, wanted = pattern, str(_PORTS[scheme])
    host = host.strip("[]")
    same = name.endswith(host[1:]) and name != host[2:] if host.startswith("*.") else name == host
    return same and wanted in ("*", str(port))


def _is_private(address: Address) -> bool:
    """Return whether an address belongs to this machine, a private network or a reserved range."""
    plain = _unmapped(address)
    tunnelled = any(plain in network for network in _TUNNELS if network.version == plain.version)
    return not plain.is_global or plain.is_multicast or plain.is_reserved or tunnelled


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_allowed_private(address: Address) -> bool:
    plain = _unmapped(address)
    return any(plain in ipaddress.ip_network(network) for network in _split(get_settings().webhook_networks))
