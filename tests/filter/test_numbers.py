"""Numbers in properties' texts."""

from __future__ import annotations

from checkback.filter import MessageSelector


def test_a_hostile_number_takes_linear_time() -> None:
    """In quadratic time it would be hours: the test's timeout."""
    selector = MessageSelector.by_sql("amount > 5.5")
    digits = "1" * 2_000_000
    assert not selector.matches(properties={"amount": digits + "x"})
    assert selector.matches(properties={"amount": f"{digits[:300]}.{digits}"})
