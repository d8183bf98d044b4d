"""The settings of images: what the gateway takes at all, and what one tenant may send.

Role: bottom layer, a part of `sections.py`.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from server.context import MediaLimits
from server.setting_types import Count, Section


def _network(text: str) -> str:
    ipaddress.ip_network(text)  # raises `ValueError`, which says what is wrong
    return text


def _host(name: str) -> str:
    name = name.lower().rstrip(".")
    if not name.strip(".") or any(character in "/:@?#* " for character in name):
        raise ValueError("is no host: write `images.example.com`, or `.example.com` for all names below it")
    return name


Host = Annotated[str, AfterValidator(_host)]
Network = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=1, le=65535)]


class MediaSettings(Section):
    """What images the gateway takes, and how it gets them.

    One request may have `max_images`, of `max_image_bytes` and `max_pixels` each, `max_total_bytes` and `max_total_pixels`
    together; tenants may have lower bounds. The engine is shown a request's images all at once, decoded: four bytes a pixel. They
    are decoded in `workers` processes, all but one of which one tenant may have; one image may take `decode_timeout_s` of a
    processor. URLs are fetched from `ports` alone, `max_fetches_per_tenant` at once, within `fetch_timeout_s` each, following
    `max_redirects`. Addresses that are not public are refused unless they are in `allowed_networks`. `url_cache_bytes`: how much
    of what was fetched is kept for the tenant's cache group, each for `url_cache_ttl_s`; 0 keeps nothing.
    """

    max_images: int = Field(default=64, ge=0)
    max_image_bytes: Count = 32 * 1024 * 1024
    max_total_bytes: Count = 48 * 1024 * 1024
    max_pixels: int = Field(default=50_000_000, ge=1, le=400_000_000)
    max_total_pixels: Count = 250_000_000
    workers: int = Field(default=3, ge=1, le=64)
    decode_timeout_s: float = Field(default=10.0, gt=0)
    ports: list[Port] = [80, 443]
    allowed_networks: list[Network] = []
    max_redirects: int = Field(default=0, ge=0, le=10)
    fetch_timeout_s: float = Field(default=10.0, gt=0)
    max_fetches_per_tenant: int = Field(default=8, ge=1)
    url_cache_bytes: int = Field(default=0, ge=0)
    url_cache_ttl_s: float = Field(default=300.0, gt=0)


class TenantMediaSettings(Section):
    """What images one tenant may send; see `server.context.MediaLimits`."""

    max_images: int | None = Field(default=None, ge=0)
    max_image_bytes: Count | None = None
    max_total_bytes: Count | None = None
    max_pixels: Count | None = None
    max_total_pixels: Count | None = None
    remote_urls: Literal["allow", "deny"] = "deny"
    allowed_hosts: list[Host] = []
    denied_hosts: list[Host] = []

    def limits(self) -> MediaLimits:
        """The limits that these settings describe."""
        return MediaLimits(
            max_images=self.max_images,
            max_image_bytes=self.max_image_bytes,
            max_total_bytes=self.max_total_bytes,
            max_pixels=self.max_pixels,
            max_total_pixels=self.max_total_pixels,
            remote_urls=self.remote_urls == "allow",
            allowed_hosts=tuple(self.allowed_hosts),
            denied_hosts=tuple(self.denied_hosts),
        )
