"""How many examples a test tries is the profile's (tests/conftest.py), or a tenth of that where each takes long."""

from hypothesis import settings

DEAR = settings(max_examples=max(3, settings().max_examples // 10))
