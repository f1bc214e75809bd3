"""How a URL is shown: without what may be secret in it."""

from __future__ import annotations

import pytest

from checkback.urls import masked, masked_each


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://host:80/check", "http://host:80/check"),
        ("http://host/check?", "http://host/check?"),
        ("http://host/check?token=a.b%20c", "http://host/check?token=****"),
        ("http://host/check?a=1&token=x=y?z&b=", "http://host/check?a=****&token=****&b=****"),
        ("http://host/check?s3cret", "http://host/check?****"),
        ("http://host/check?a=1&s3cret", "http://host/check?a=****&****"),
    ],
)
def test_the_values_of_a_query_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert masked(shown) == shown


def test_endpoints_that_look_the_same_are_numbered() -> None:
    urls = ["http://a/?t=1", "http://b/?t=1", "http://a/?t=2", "http://a/?t=1", "http://a/?t=3"]
    shown = ["http://a/?t=****", "http://b/?t=****", "http://a/?t=****#2", "http://a/?t=****", "http://a/?t=****#3"]
    assert masked_each(urls) == shown
    assert [*map(masked, shown)] == shown
