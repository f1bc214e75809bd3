"""What a URL must be to be posted to: one rule for the check client and for the producer's gateway."""

from __future__ import annotations

from urllib.parse import urlsplit

import requests


def postable(url: str) -> bool:
    """Is it a URL to POST to, without credentials and fragment? requests must agree."""
    try:
        parts = urlsplit(url)
        requests.Request("POST", url).prepare()
        fit = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, requests.RequestException):
        return False
    return fit and "@" not in parts.netloc and not parts.fragment
