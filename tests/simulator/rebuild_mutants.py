"""Rebuilds with one step wrong: the simulator must find every one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.reconcile.state.state_restore import Known
from simulator.rebuild import Checked, Rebuild
from simulator.reconcile import APP, Reconcile

if TYPE_CHECKING:
    from collections.abc import Iterator


class ForgetsWhatIsDecided(Rebuild):
    """Decided offsets are not known as seen."""

    def halves(self, until: int, now: int) -> Iterator[tuple[Any, ...]]:
        return (row for row in super().halves(until, now) if row[2] == Known.UNDECIDED)


class FinishesNothing(Rebuild):
    """What a batch has left half done stays so."""

    def finish(self) -> Iterator[tuple[str, list[Any]]]:
        return ((name, []) for name, _ in super().finish())


class FinishesNoMessages(Rebuild):
    """Only the decisions are completed."""

    def finish(self) -> Iterator[tuple[str, list[Any]]]:
        return ((name, rows if name == "decisions" else []) for name, rows in super().finish())


class ForgetsDeliveries(Rebuild):
    """What was delivered is scheduled again."""

    def halves(self, until: int, now: int) -> Iterator[tuple[Any, ...]]:
        deliveries, self.tables.rows["deliveries"] = self.tables.rows["deliveries"], []
        yield from super().halves(until, now)
        self.tables.rows["deliveries"] = deliveries


class FinishesNoDeliveries(Rebuild):
    """What a batch has published, and not noted as delivered, stays so."""

    def finish(self) -> Iterator[tuple[str, list[Any]]]:
        return ((name, [] if name == "deliveries" else rows) for name, rows in super().finish())


class CountsChecksAnew(Rebuild):
    """Checks start at 0."""

    def checks(self) -> dict[Checked, tuple[int, int, int]]:
        return {}


class ChecksAtOnce(Rebuild):
    """The number of the last check is known, but not its time."""

    def checks(self) -> dict[Checked, tuple[int, int, int]]:
        return {key: (times, asked, 0) for key, (times, asked, _) in super().checks().items()}


class ForgetsWaitingOps(Rebuild):
    """Ops that no batch has dealt with, or that wait for their half, are left out."""

    def ops(self, until: int) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - that is the fault
        return iter(())


class RejectsAgain(Rebuild):
    """Ops that are in `rejected` are applied again."""

    def ops(self, until: int) -> Iterator[tuple[Any, ...]]:
        rejected, self.tables.rows["rejected"] = self.tables.rows["rejected"], []
        yield from super().ops(until)
        self.tables.rows["rejected"] = rejected


class RestoresWhatIsRead(Rebuild):
    """The tables are restored as they are at last, and the query reads what landed meanwhile, too."""

    def blocks(self, halves: int, ops: int, now: int) -> Iterator[tuple[str, bytes]]:  # noqa: ARG002 - that is the fault
        return super().blocks(*self.noted(), now)


class ReadsTheNewest(Rebuild):
    """The query begins with what lands after its start."""

    def read_from(self, until: tuple[int, int]) -> tuple[int, int]:  # noqa: ARG002 - that is the fault
        return self.noted()


class OneApplication(Reconcile):
    """A new checkpoint writes as the application that the lost one was, and its batches begin at 0 again."""

    @property
    def app(self) -> str:
        return APP


REBUILDS: dict[str, type[Rebuild]] = {
    "decided offsets not seen": ForgetsWhatIsDecided,
    "nothing finished": FinishesNothing,
    "no messages finished": FinishesNoMessages,
    "deliveries forgotten": ForgetsDeliveries,
    "no deliveries finished": FinishesNoDeliveries,
    "checks counted anew": CountsChecksAnew,
    "checked again at once": ChecksAtOnce,
    "waiting ops forgotten": ForgetsWaitingOps,
    "rejected again": RejectsAgain,
    "restored and read": RestoresWhatIsRead,
    "landed meanwhile and not read": ReadsTheNewest,
}
