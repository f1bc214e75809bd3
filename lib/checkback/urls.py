"""URLs: which are valid for a POST, and how they are shown."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What may be secret in a URL, the values of its query, as a regular expression of Python, Java and RE2: groups 1 and 2
#: stay, and so does the number of `masked_each`. And what is shown in its place.
SECRETS, MASK = r"([?&])(?:([^=&#]*=)[^&#]*|[^=&#]+)", "****"

#: the gateway's path for checks that RocketMQ's clients answer
CHECKS_OF_CLIENTS = "/v1/rocketmq/check"
#: hosts that are this machine
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def is_loopback(host: str) -> bool:
    """Is an address to listen on this machine's alone?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    name = header.lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def in_url(host: str) -> str:
    """A host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def masked(url: str) -> str:
    """The URL as it is shown and recorded, without what may be secret in it: ``https://host/check?token=****``."""
    return re.sub(SECRETS, rf"\1\2{MASK}", url)


def host_only(url: str) -> str:
    """The URL without what is behind its host, which may be secret: ``https://hooks.example.com/****``."""
    scheme, _, rest = url.partition("://")
    host, slash, behind = rest.partition("/")
    return f"{scheme}://{masked(host)}{slash}{MASK if behind else ''}"


def masked_each(urls: Iterable[str]) -> list[str]:
    """Each as `masked`. What then looks the same is numbered: ``https://host/check?token=****#2``."""
    alike: dict[str, list[str]] = {}
    shown = []
    for url in urls:
        others = alike.setdefault(masked(url), [])
        if url not in others:
            others.append(url)
        number = others.index(url) + 1
        shown.append(masked(url) if number == 1 else f"{masked(url)}#{number}")
    return shown


def postable(url: str) -> bool:
    """True for a URL that can be posted to, without credentials or fragment, and that requests accepts."""
    import requests  # to mask needs none of it

    try:
        parts = urlsplit(url)
        requests.Request("POST", url).prepare()
        fit = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, requests.RequestException):
        return False
    return fit and "@" not in parts.netloc and not parts.fragment


def as_sent(url: str) -> str:
    """A postable URL as it is sent: quoted, and the host IDNA-encoded."""
    import requests

    return requests.Request("POST", url).prepare().url or url
