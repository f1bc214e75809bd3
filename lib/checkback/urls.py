"""What a URL must be to be posted to: one rule for the check client and for the producer's gateway."""

from __future__ import annotations

from urllib.parse import urlsplit

import requests


def postable(url: str) -> bool:
    """True for a URL that can be posted to, without credentials or fragment, and that requests accepts."""
    try:
        parts = urlsplit(url)
        requests.Request("POST", url).prepare()
        fit = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, requests.RequestException):
        return False
    return fit and "@" not in parts.netloc and not parts.fragment
