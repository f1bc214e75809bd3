"""The protocol with one fault put in, each one that somebody might make: the simulator must find every one."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from checkback.reconcile import scheduled_messages, segment
from checkback.reconcile.state import next_deliveries, partition_batch, state_codec, state_restore
from simulator import promises, rebuild
from simulator.lives import NEXT
from simulator.rebuild_mutants import OneApplication
from simulator.reconcile import InPieces, Planned, Reconcile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.reconcile.publish.half_lookup import HalfLookup
    from checkback.reconcile.records.actions import Actions
    from checkback.reconcile.segment import Rules

_OPS = "    segment = _apply_ops(segment, events[is_op], now, oldest, actions, crowded)\n"
_ANSWERED = '(kind == Kind.COUNTED) | (is_op & (events["source"] == Source.CHECK))'
_CHECKS = "    segment = _check_back(segment, now, rules, actions) if check else segment\n"
_CANCEL = "    segment = _cancel(segment, events[kind == Kind.CANCEL], now, actions)\n    cancels = segment.cancels\n"
_TAKE = "    segment = _take_halves(segment, events[is_half], now, rules, actions)\n"
_IN_ORDER = 'sort(ops, "offset", "store", "born", "kind")'
#: what is wrong -> (as it stands, as it should not): in segment.py
FAULTS: dict[str, tuple[str, str]] = {
    "ops after checks": (_OPS + _CHECKS, _CHECKS + _OPS),
    "answered check not counted": (_ANSWERED, "kind == Kind.COUNTED"),
    "due at the end of the immunity, not after it": ("rules.timeout) + 1", "rules.timeout)"),
    "immunity of the message ignored": ("own >= 0, own", "own >= 99, own"),
    "immunity without an end": ('np.minimum(halves["immunity"], rules.max_age)', 'halves["immunity"]'),
    "birth in the future taken as it is": ('np.minimum(halves["born"], halves["store"] // 1000)', 'halves["born"]'),
    "early ops forgotten": ("pending=pending[left], early=early", "pending=pending[left], early=early[:0]"),
    "seen offsets forgotten": ('    seen[places(taken["offset"], len(seen))] = True\n', ""),
    "checked again at once": ("checked + rules.check_interval", "checked + 1"),
    "check not counted": ('["check_times"][check] += counts', '["check_times"][check] += 0'),
    "check that nobody received counted": ('["check_times"][check] += counts', '["check_times"][check] += 1'),
    "last check counted that was sent to nobody": (
        "rules.count_undelivered & (number < rules.check_max)",
        "rules.count_undelivered & (number <= rules.check_max)",
    ),
    "received check not counted": ("    known = same &", "    known = ~same &"),
    "received check counted each time it is told": (
        'known = same & (counted["check"] > half["check_times"]) & (counted["check"] <= half["requested"])\n',
        'known, counted = same, counted.copy()\n    counted["check"] = half["check_times"] + 1\n',
    ),
    "one check too many": (">= rules.check_max", "> rules.check_max"),
    "discard without the last interval": (
        'exhausted = due & (pending["check_times"]',
        'exhausted = (pending["check_times"]',
    ),
    "last op wins": (_IN_ORDER, f"{_IN_ORDER}[::-1]"),
    "COMMIT wins a tie": (
        _IN_ORDER,
        'ops[np.lexsort((-ops["kind"].astype(int), ops["born"], ops["store"], ops["offset"]))]',
    ),
    "any group's op obeyed": ('matched["group"] == pending["group"][at]', 'matched["group"] != 0'),
    "any transaction's op obeyed": (
        '(matched["transaction"] == pending["transaction"][at])',
        '(matched["offset"] >= 0)',
    ),
    "unknown state obeyed": ("        ops = ops[~bad]\n", '        ops["kind"][bad] = Kind.COMMIT\n'),
    "decided and still pending": ("    left[at] = False\n", ""),
    "given up at max_age, not after it": ("// 1000 > rules.max_age", "// 1000 >= rules.max_age"),
    "never given up": ("// 1000 > rules.max_age", "// 1000 > 99 * rules.max_age"),
    "given up by the birth": ('checked - old["store"] // 1000', 'checked - old["born"]'),
    "given up without a last check": ('checked - old["store"] // 1000', 'now - old["store"] // 1000'),
    "given up though hardly checked": ('(pending["requested"] >= rules.enough)', '(pending["requested"] >= 1)'),
    "hostile group's ops without bound": ('"group") >= WAITING_OF_GROUP', '"group") >= 99 * WAITING_OF_GROUP'),
    "hostile group's ops take another's place": (
        'occurrence(ops, "offset", "group") >= WAITING_OF_GROUP',
        'occurrence(ops, "offset") >= WAITING_OF_GROUP',
    ),
    "no timer for what is due": ('times.append(self.pending["due"].min())', "pass"),
    "restored ops left to wait": ("                return 0  #", "                pass  #"),
    "forgotten with ops waiting": ("len(self.pending) or len(self.early) or", "len(self.pending) or"),
    "forgotten with messages scheduled": ("len(self.early) or len(self.scheduled))", "len(self.early))"),
    "message without a transaction waits for an op": (
        '    own = taken["kind"] == Kind.MESSAGE\n',
        '    own = is_half = taken["kind"] == 99\n',
    ),
    "scheduled and cancelled in one batch": (_CANCEL + _TAKE, _TAKE + _CANCEL),
    "waiting CANCEL applied and kept": ("[segment.early[~waited], ops[~known]]", "[segment.early, ops[~known]]"),
    "waiting CANCEL forgotten": ("[segment.early[~waited], ops[~known]]", "[segment.early[~waited]]"),
    "CANCEL read with its half message rejected": (
        '    known = segment.has_seen(ops["offset"]) &',
        '    known = (ops["offset"] >= 0) &',
    ),
    "waiting CANCEL does not hold the delivery": ("now, actions, cancels))", "now, actions, cancels[:0]))"),
    "restored CANCEL before the COMMIT": (' & ~np.isin(ops["offset"], restored)', ""),
}

#: in scheduled_messages.py
SCHEDULED_FAULTS: dict[str, tuple[str, str]] = {
    "delay dropped, as RocketMQ does": ("later = (due > now) |", "later = (due > now + 10**9) |"),
    "delay from the birth": ('now - rows["delay"]', 'rows["born"] - rows["delay"]'),
    "time of delivery taken for a delay": (
        'now - rows["delay"], rows["delay"])',
        'now - rows["delay"], now + rows["delay"])',
    ),
    "delivered early": ('due = scheduled["due"] <= now', 'due = scheduled["due"] <= now + 2'),
    "delivered late": ('due = scheduled["due"] <= now', 'due = scheduled["due"] < now - 5'),
    "delivered and still scheduled": ("return scheduled[~due]", "return scheduled"),
    "cancelled and still scheduled": ("    left[at[first]] = False\n", ""),
    "any group's CANCEL obeyed": (
        'same_group = found["group"] == scheduled["group"][at]',
        'same_group = found["offset"] >= 0',
    ),
    "any transaction's CANCEL obeyed": (
        '(found["transaction"] == scheduled["transaction"][at])',
        '(found["offset"] >= 0)',
    ),
    "CANCEL of nothing not rejected": ("        (ops[~known], Reason.NOT_SCHEDULED),\n", ""),
    "scheduled messages replaced by new ones": ("np.concatenate([scheduled, more])", "more"),
}

#: in next_deliveries.py
NEXT_FAULTS: dict[str, tuple[str, str]] = {
    "delivered again by the block": (
        'segment.scheduled["due"] > self.delivered_until',
        'segment.scheduled["due"] > _NEVER',
    ),
    "scheduled ones taken for delivered": (
        'segment.scheduled["due"] > self.delivered_until',
        'segment.scheduled["due"] > self.delivered_until + 5',
    ),
    "any of the scheduled ones taken for the next": (
        'np.argsort(segment.scheduled["due"], kind="stable")',
        "np.arange(len(segment.scheduled))",
    ),
    "what only the block holds forgotten": (' or now >= self.records["due"][-1]', ""),
    "delivered and still next": ("replace(self, records=left,", "replace(self,"),
}

#: in restore.py
RESTORE_FAULTS: dict[str, tuple[str, str]] = {
    "op of an unknown state takes another's place": (
        'np.isin(early["kind"], (Kind.UNKNOWN, Kind.CANCEL))',
        'early["kind"] > 99',
    ),
    "pending half not seen": ('seen[places(halves["offset"], size)] = True', "pass"),
    "restored with the last op first": ("early[np.sort(", "early[::-1][np.sort("),
    "seen bits let go": ("int(taken.max()) + rules.max_age", "0 * len(halves)"),
    "checks that did not count forgotten": ('"check_times", "requested", "delay")', '"check_times", "delay")'),
    "decided one pending again": (
        'undecided = first_of_each(halves["offset"]) & (halves["known"] == Known.UNDECIDED)',
        'undecided = first_of_each(halves["offset"])',
    ),
    "scheduled ones forgotten": ("        scheduled=_scheduled(halves),\n", ""),
    "message without a transaction pending": (
        'halves[first & (halves["kind"] == Kind.MESSAGE)]',
        'halves[first & (halves["kind"] == 99)]',
    ),
}


@contextmanager
def broken_restore(fault: str) -> Iterator[None]:
    """Inside, a rebuild restores segments by a restore.py with this fault."""
    module = broken_module(state_restore, *RESTORE_FAULTS[fault])
    with patch.object(rebuild, "restore", module.restore):
        yield


@contextmanager
def broken_schedule(fault: str) -> Iterator[None]:
    """Inside, scheduled messages are those of a scheduled_messages.py with this fault."""
    with patch.object(segment, "scheduling", broken_module(scheduled_messages, *SCHEDULED_FAULTS[fault])):
        yield


@contextmanager
def broken_next(fault: str) -> Iterator[None]:
    """Inside, a segment's next deliveries are those of a next_deliveries.py with this fault."""
    module = broken_module(next_deliveries, *NEXT_FAULTS[fault])
    module.MOST = NEXT
    with (
        patch.object(partition_batch, "NextDeliveries", module.NextDeliveries),
        patch.object(partition_batch, "load", module.load),
        patch.object(promises, "load", module.load),
    ):
        yield


@contextmanager
def broken_segment(fault: str) -> Iterator[None]:
    """Inside, the processor decides by a segment.py with this fault."""
    module = broken_module(segment, *FAULTS[fault])
    with (
        patch.object(partition_batch, "decide", module.decide),
        patch.object(partition_batch, "Segment", module.Segment),
        patch.object(state_codec, "Segment", module.Segment),
        patch.object(state_restore, "Segment", module.Segment),
    ):
        yield


def broken_module(good: ModuleType, right: str, wrong: str) -> Any:
    """The module with that one change of its source."""
    path = str(good.__file__)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.count(right) == 1, f"{path} has changed, and the mutant of {right!r} must, too"
    module: Any = ModuleType(good.__name__)
    with patch.dict("sys.modules", {good.__name__: module}):  # dataclasses look for their module there
        exec(compile(text.replace(right, wrong), path, "exec"), module.__dict__)  # noqa: S102
    return module


class ReplaysAtAnotherTime(Reconcile):
    """A batch that is done again takes the clock's time, not the offset log's."""

    def replay_time(self, planned: Planned, clock: int) -> int:  # noqa: ARG002 - that is the fault
        return clock


class TakesTheSettingsOfTheDay(Reconcile):
    """A batch that is done again is done by the settings that there are by now."""

    def begun_with(self, planned: Planned) -> tuple[Rules, int | None, int | None]:  # noqa: ARG002 - that is the fault
        return self.rules, self.max_checks, self.max_deliveries


class TakesTheRulesOfTheDay(Reconcile):
    """Only the limits are kept with a batch."""

    def begun_with(self, planned: Planned) -> tuple[Rules, int | None, int | None]:
        return self.rules, planned.max_checks, planned.max_deliveries


class TakesTheLimitOfTheDay(Reconcile):
    """max_checks is not kept with a batch."""

    def begun_with(self, planned: Planned) -> tuple[Rules, int | None, int | None]:
        return planned.rules, self.max_checks, planned.max_deliveries


class TakesTheDeliveriesOfTheDay(Reconcile):
    """max_deliveries is not kept with a batch."""

    def begun_with(self, planned: Planned) -> tuple[Rules, int | None, int | None]:
        return planned.rules, planned.max_checks, self.max_deliveries


class ChecksWhatMayHaveAnOp(InPieces):
    """A batch that is behind checks and delivers as others do."""

    def is_behind(self, planned: Planned) -> bool:  # noqa: ARG002 - that is the fault
        return False


class LooksAtUnreadOpsOnly(InPieces):
    """A batch that leaves half messages unread takes itself for one that has read all."""

    def is_behind(self, planned: Planned) -> bool:
        return planned.unread[0] < planned.unread[1]


class WritesAgain(Reconcile):
    """A batch that is done again writes all its tables again."""

    def run(self, clock: int, order: int, crash: int | None) -> str:
        self.tables._versions = {}
        return super().run(clock, order, crash)


class ForgetsTheLastState(Reconcile):
    """A batch that is done again finds the state that its first try left."""

    def run(self, clock: int, order: int, crash: int | None) -> str:
        planned = self.offsets[self.committed]
        before = self.offsets[self.committed - 1].time if self.committed > self.first else -1
        try:
            return super().run(clock, order, crash)
        except Exception:
            self.states[self.committed], _ = self._decide(planned, planned.time, before)
            raise


class LooksUpByNumbersAlone(Reconcile):
    """Half messages that landed together at one offset, and were read by two batches, are not told apart."""

    def looked_up_again(self, actions: Actions, wanted: HalfLookup) -> HalfLookup:  # noqa: ARG002 - that is the fault
        return wanted


ENGINES: dict[str, type[Reconcile]] = {
    "replay at another time": ReplaysAtAnotherTime,
    "settings not kept with a batch": TakesTheSettingsOfTheDay,
    "rules not kept with a batch": TakesTheRulesOfTheDay,
    "max_checks not kept with a batch": TakesTheLimitOfTheDay,
    "checks while it is behind": ChecksWhatMayHaveAnOp,
    "half messages unread are not behind": LooksAtUnreadOpsOnly,
    "max_deliveries not kept with a batch": TakesTheDeliveriesOfTheDay,
    "tables written again": WritesAgain,
    "looked up by numbers alone": LooksUpByNumbersAlone,
    "one application for all checkpoints": OneApplication,
    "state kept from a batch that failed": ForgetsTheLastState,
}
