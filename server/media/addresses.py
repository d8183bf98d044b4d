"""Which addresses the gateway connects to on a client's behalf: public ones, and those the operator has named.

Role: asked by `fetch.py` for every address that a URL or a name stands for, before anything is sent there.
Invariant: an address is refused unless it is known to be public. The networks are written down here: `ipaddress.is_global` has
another table in each Python release, and knows nothing of what a cloud answers at public addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Source: IANA's registry of special-purpose IPv4 addresses, and of multicast ones.
_NOT_PUBLIC_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; 100.100.100.200 is Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; 169.254.169.254 is most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112, answered by whoever is near
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "168.63.129.16/32",  # public by number: inside Azure, the host that a virtual machine runs on
    )
)

# The only part of IPv6 that is given out for public use. Source: IANA's registry of the IPv6 address space, RFC 4291.
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")

# Source: IANA's registry of special-purpose IPv6 addresses, as far as they are inside global unicast. Outside, and so refused:
# `::`, loopback, IPv4-mapped and -compatible, NAT64 64:ff9b::/96 and 64:ff9b:1::/48, discard-only 100::/64, SRv6 5f00::/16,
# unique local fc00::/7 (fd00:ec2::254 is Amazon's metadata), link-local fe80::/10, site-local fec0::/10, multicast ff00::/8.
_NOT_PUBLIC_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID and others
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)

_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/96"))
_COMPATIBLE: Final = IPv6Network("::/96")


def is_public(address: Address) -> bool:
    """Whether `address` is one that anybody on the internet reaches, and reaches the same machine at."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    if address.scope_id is not None:
        return False
    return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_PUBLIC_V6)


def unmapped(address: Address) -> Address:
    """The IPv4 address that `address` is another spelling of, or `address`."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def embedded(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses to which a translator or a tunnel would send what is sent to `address`."""
    if isinstance(address, IPv4Address):
        return ()
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if any(address in network for network in (*_NAT64, _COMPATIBLE)) and int(address) > 1:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()


class AddressRule:
    """Public addresses, and those in `allowed_networks`, whatever they are.

    An allowed network of addresses that have an IPv4 address in them (NAT64, 6to4) allows those whose inner address may be
    reached in its own right.
    """

    def __init__(self, allowed_networks: Iterable[str] = ()) -> None:
        self._allowed: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in allowed_networks)

    def permits(self, address: Address) -> bool:
        """Whether the gateway may connect to `address`."""
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return False
        plain = unmapped(address)
        if any(plain.version == network.version and plain in network for network in self._allowed):
            return all(self.permits(inner) for inner in embedded(plain))
        return is_public(plain)
