"""How many examples a test tries is the profile's (tests/conftest.py), or a part of that where each takes long."""

from hypothesis import settings


def fewer(times: int) -> settings:
    """So many times fewer examples than the profile has, and at least three."""
    return settings(max_examples=max(3, settings().max_examples // times))


DEAR = fewer(10)
