"""The host in a URL: one spelling for each, and a number always read as the address it stands for.

Role: between `urls.py`, which finds the host in a URL, and `fetch.py`. A resolver reads `0x7f.1` as 127.0.0.1, so it must not
pass for a name; tenants' lists of hosts are compared with the one spelling.
Source: the WHATWG's URL standard, host parsing and IPv4 parsing; UTS 46 for names that are not ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

import idna

from server.media.addresses import Address

MAX_HOST_CHARS: Final = 253
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IPV4_BITS: Final = 32


def parse_host(text: str) -> str | Address:
    """The name (ASCII, lower case, no dot at the end) or address that `text` means. Raises `ValueError`, which says why not."""
    if text.startswith("["):
        return _ipv6(text)
    if "%" in text:
        raise ValueError("has a `%` in it: write it without")
    if len(text) > MAX_HOST_CHARS + 1:
        raise ValueError(f"is longer than `{MAX_HOST_CHARS}` characters")
    name = ascii_name(text)
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(name) > MAX_HOST_CHARS:
        raise ValueError("is no host name")
    return _ipv4(labels) if _NUMBER.fullmatch(labels[-1]) else name


def ascii_name(text: str) -> str:
    """`text` in ASCII and lower case, without a dot at its end. Raises `ValueError` where IDNA has no such name."""
    if not text.isascii():
        text = idna.encode(text, uts46=True, transitional=False).decode("ascii")
    return text.lower().removesuffix(".")


def is_listed(host: str, entries: Iterable[str]) -> bool:
    """Whether `host` is one of `entries`: each a name, or with a leading dot that name and all below it."""
    return any(_matches(host, entry) for entry in entries)


def _matches(host: str, entry: str) -> bool:
    is_below = entry.startswith(".")
    try:
        name = ascii_name(entry.removeprefix("."))
    except ValueError:  # no host can have this name
        return False
    return host == name or (is_below and host.endswith("." + name))


def _ipv6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError("names a network interface: write the address alone")
    try:
        return IPv6Address(text.removeprefix("[").removesuffix("]"))
    except AddressValueError:
        raise ValueError("is no IPv6 address") from None


def _ipv4(labels: list[str]) -> IPv4Address:
    """One to four numbers, decimal, octal (`0`) or hexadecimal (`0x`), of which the last has all the bytes that are left."""
    try:
        *leading, last = (_number(label) for label in labels)
    except ValueError:
        raise ValueError("ends like an address and is none") from None
    bits_left = _IPV4_BITS - 8 * len(leading)
    if bits_left <= 0 or any(number > 255 for number in leading) or last >= 1 << bits_left:
        raise ValueError("ends like an address and is none")
    value = 0
    for number in leading:
        value = value << 8 | number
    return IPv4Address(value << bits_left | last)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):  # `int` would read signs and underscores, too
        raise ValueError("is no number")
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8) if text.startswith("0") else int(text)
