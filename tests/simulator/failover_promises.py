"""The promises of transactions that have several half messages, besides those of each half message.

P2 a transaction is published once at most, whichever gateways have stored it. P3 it is published as the half message
under which its local transaction has committed. P1 in the end each transaction that has committed is published, unless
the gateway's disk was lost with the half message, or no check was answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.promises import BrokenError, Promises

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.gateways import Gateway
    from simulator.services import Service


@dataclass(kw_only=True)
class FailoverPromises(Promises):
    """Judges the transactions, too."""

    service: Service
    gateways: Sequence[Gateway]

    def check(self) -> None:
        """Raises BrokenError when one is broken."""
        super().check()
        tables = self.world.tables.landed
        of = {(half.queue, half.offset): half.transaction for half in tables["half"]}
        published: dict[int, list[tuple[int, int]]] = {}
        for row in tables["topics"]:
            published.setdefault(of[row.queue, row.offset], []).append((row.queue, row.offset))
        for transaction, places in published.items():
            if len(places) > 1:
                raise BrokenError(f"P2: id {transaction} is published {len(places)} times, as {places}")
            if places != self.service.committed.get(transaction):
                committed = self.service.committed.get(transaction)
                raise BrokenError(
                    f"P3: id {transaction} is published as {places}, its transaction committed {committed}"
                )

    def end(self) -> bool:
        """See Promises.end."""
        done = super().end()
        if done:
            tables = self.world.tables.landed
            of = {(half.queue, half.offset): half.transaction for half in tables["half"]}
            published = {(row.queue, row.offset) for row in tables["topics"]}
            discarded = {(row.queue, row.offset) for row in tables["discarded"]}
            lost = {gateway.queue for gateway in self.gateways if gateway.lost}
            for transaction, places in self.service.committed.items():
                for place in places:
                    gone = of.get(place) != transaction and place[0] in lost
                    if place not in published and place not in discarded and not gone:
                        raise BrokenError(f"P1: id {transaction} has committed as {place}, and is not published")
        return done
