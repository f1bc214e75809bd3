"""What a batch of checks is told as."""

from __future__ import annotations

from checkback.observe.counts import OTHER, by_group


def test_groups_with_the_most_checks_are_told_by_their_names() -> None:
    """And all others as one, however many names somebody makes up."""
    made_up = {("NO_ANSWER", f"g{number}"): 1 for number in range(200_000)}
    found = by_group({("COMMIT", "orders"): 3, ("UNKNOWN", "orders"): 2, ("COMMIT", "bank"): 4, **made_up}, 2)
    assert found == {
        "orders": {"COMMIT": 3, "UNKNOWN": 2},
        "bank": {"COMMIT": 4},
        OTHER: {"NO_ANSWER": 200_000},
    }
