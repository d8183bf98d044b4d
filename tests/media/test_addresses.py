"""An address is public only if it is known to be."""

from __future__ import annotations

import ipaddress
import random
from ipaddress import IPv4Address, IPv6Address

import pytest

from server.media.addresses import AddressRule, embedded, is_public, unmapped

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0",
    "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15", "168.63.129.17",
    "2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2001:200::1", "2001:4860:4860::8888", "2003::1", "2620:4f:7fff::1",
]  # fmt: skip
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.0", "172.31.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.170",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "192.31.196.1", "192.52.193.1", "192.175.48.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.7", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "168.63.129.16",
    "::", "::1", "::2", "::7f00:1", "::10.0.0.1", "::8.8.8.8", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
    "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "64:ff9b:1:ffff::a00:1", "100::1", "100:0:0:1::1",
    "2001::1", "2001:0:1:2::a00:1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:1::1", "2001:4:112::1", "2001:db8::1",
    "2002:a00:1::1", "2002:7f00:1::", "2002:808:808::1", "2620:4f:8000::1", "3fff::1", "3fff:fff:ffff::1", "5f00::1", "4000::1",
    "1fff:ffff::1", "fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "febf::1", "fe80::1%eth0", "2606:4700::1%eth0", "fec0::1",
    "feff::1", "ff02::1", "ffff:ffff::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public(text: str) -> None:
    address = ipaddress.ip_address(text)

    assert is_public(address)
    assert AddressRule().permits(address)


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", [text for text in NOT_PUBLIC if text != "::ffff:8.8.8.8"])
def test_the_rule_refuses_what_is_not_public(text: str) -> None:
    assert not AddressRule().permits(ipaddress.ip_address(text))
    assert not AddressRule(["127.7.7.0/24", "fd12::/16"]).permits(ipaddress.ip_address(text))


def test_the_rule_takes_a_mapped_address_for_what_it_means() -> None:
    assert IPv4Address("8.8.8.8") == unmapped(ipaddress.ip_address("::ffff:8.8.8.8"))
    assert AddressRule().permits(ipaddress.ip_address("::ffff:8.8.8.8"))
    assert AddressRule(["10.1.0.0/16"]).permits(ipaddress.ip_address("::ffff:10.1.0.1"))
    assert not AddressRule(["10.1.0.0/16"]).permits(ipaddress.ip_address("::ffff:10.2.0.1"))
    assert not AddressRule(["::/0"]).permits(ipaddress.ip_address("::ffff:10.2.0.1"))


@pytest.mark.parametrize(
    ("network", "allowed", "refused"),
    [
        ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
        ("127.0.0.1/32", "127.0.0.1", "127.0.0.2"),
        ("fd00:1::/32", "fd00:1::5", "fd00:2::5"),
        ("::1/128", "::1", "127.0.0.1"),
        ("64:ff9b::/96", "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1"),
        ("64:ff9b:1::/96", "64:ff9b:1::8.8.8.8", "64:ff9b:1::169.254.169.254"),
        ("2002::/16", "2002:808:808::1", "2002:a00:1::1"),
        ("2001::/32", "2001:0:808:808::f7f7:f7f7", "2001:0:808:808::f5ff:fffe"),  # Teredo: server, then client's inverted
        ("::/96", "::8.8.8.8", "::10.0.0.1"),
    ],
)
def test_allowed_networks(network: str, allowed: str, refused: str) -> None:
    rule = AddressRule([network])

    assert rule.permits(ipaddress.ip_address(allowed))
    assert not rule.permits(ipaddress.ip_address(refused))
    assert not AddressRule().permits(ipaddress.ip_address(allowed))


def test_an_inner_address_that_is_allowed_too() -> None:
    assert AddressRule(["64:ff9b::/96", "10.0.0.0/8"]).permits(ipaddress.ip_address("64:ff9b::10.0.0.1"))


def test_nothing_is_inside_an_ordinary_address() -> None:
    assert () == embedded(IPv4Address("10.0.0.1"))
    assert () == embedded(IPv6Address("2606:4700::1"))
    assert () == embedded(IPv6Address("::1"))


def test_python_knows_of_nothing_that_should_be_refused_too() -> None:
    """Its table grows; a network that a release adds is seen here."""
    rng = random.Random(5)
    networks = [ipaddress.ip_network("0.0.0.0/0")] * 6 + [
        ipaddress.ip_network(text) for text in ("2000::/3", "2001::/16", "::/0")
    ]
    surprises = []
    for _ in range(30_000):
        network = rng.choice(networks)
        address = network[rng.randrange(network.num_addresses)]
        if is_public(address) and (not address.is_global or address.is_multicast or address.is_reserved or address.is_private):
            surprises.append(address)

    assert [] == surprises
