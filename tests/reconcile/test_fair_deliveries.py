"""`max_deliveries` starves nobody: what one group has scheduled does not keep that of another waiting."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reconcile.segments import SIZE, half, message
from reconcile.test_fair_checks import MASS, MOST, RULES, START, TRIGGER, VICTIM, Partition

#: in ms: due in the next batch
_SOON = TRIGGER - 500


def _flood(partition: Partition, number: int, segments: int, most: int = SIZE) -> dict[str, list[tuple[Any, ...]]]:
    """Segments with messages that are due in the next batch. ``number``: of the batch."""
    now, found = partition.now + TRIGGER, {}
    for place in range(segments * number, segments * (number + 1)):
        first = place * SIZE
        rows = [message(first + n, now, group=MASS, tx=first + n + 1, at=now + _SOON) for n in range(most)]
        found[f"{MASS}/{place}"] = rows
    return found


def test_flood_of_one_group_does_not_delay_the_delivery_of_another() -> None:
    """More than a batch can publish, in segments that get events when it is due: these are processed first."""
    partition = Partition()
    for number in range(100):
        rows = _flood(partition, number, 4, SIZE - 1)
        for place in range(4 * (number - 1), 4 * number) if number else ():
            last = (place + 1) * SIZE - 1
            rows[f"{MASS}/{place}"] = [message(last, partition.now, group=MASS, tx=last + 1)]
        if number == 20:
            now = partition.now + TRIGGER
            rows["1/0"] = [message(0, now, group=VICTIM, at=now + _SOON)]
        partition.batch(rows)
        if partition.delivered[VICTIM]:
            break
    assert number == 21


def test_mass_that_is_due_at_once_leaves_a_part_of_each_batch_to_others() -> None:
    partition = Partition()
    rows = _flood(partition, 0, 50)
    at = partition.now + 3 * TRIGGER - 500  # due in the batch after the first that delivers
    partition.batch(rows | {"1/0": [message(0, START, group=VICTIM, at=at)]})
    partition.batch()
    assert partition.delivered[MASS] >= MOST
    partition.batch()
    assert partition.delivered[VICTIM] == 1
    assert partition.delivered[MASS] >= MOST


def test_all_of_a_mass_is_delivered_and_no_batch_delivers_much_more_than_it_may() -> None:
    partition = Partition()
    partition.batch(_flood(partition, 0, 50))
    delivered: list[int] = []
    while sum(delivered) < 50 * SIZE:
        partition.batch()
        delivered.append(partition.delivered[MASS])
        assert delivered[-1] > 0
    assert max(delivered) <= MOST * 5 // 4 + SIZE
    assert not any(timer for timer in partition.state.timers if timer[0] <= partition.now)


def test_timers_do_not_multiply_while_checks_are_put_off() -> None:
    """A segment that waits for its checks delivers a message in each batch meanwhile."""
    partition, timers = Partition(), Counter[str]()
    for number in range(60):
        now = partition.now + TRIGGER
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for place in range(4):
            rows |= partition.segment(MASS, 4 * number + place, MASS, now - RULES.timeout + 100)
        if number == 20:
            waiting = half(0, now, group=VICTIM, immunity=1000)
            due = [message(n, now, group=VICTIM, tx=n, at=now + n * TRIGGER + 1500) for n in range(1, SIZE)]
            rows["5/0"] = [waiting, *due]
        partition.batch(rows)
        timers = Counter(key for _, key in partition.state.timers)
        assert timers["5/0"] <= 2
