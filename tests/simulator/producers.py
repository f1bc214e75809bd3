"""The producers of a simulated world: what they send, and what they say when they are asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER = "COMMIT", "ROLLBACK", "UNKNOWN", "NO_ANSWER"
#: NO_ANSWER, and no endpoint has even received the check
NOBODY = "NOBODY"
OUTCOMES = (COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER, NOBODY)


@dataclass(frozen=True)
class Transaction:
    """One transaction, and its producer's answers: by turns, the last one for ever.

    NO_ANSWER is a producer that has vanished, and whatever the client takes for none: another id, a status, no JSON.
    """

    queue: int
    offset: int
    group: int
    transaction: int
    answers: Sequence[str]

    @property
    def key(self) -> tuple[int, int]:
        """What names it."""
        return self.queue, self.offset

    def __str__(self) -> str:
        said = ", ".join(self.answers)
        return f"{self.queue}/{self.offset}, group {self.group}, id {self.transaction}; asked, it says {said} ..."


@dataclass
class Producers:
    """Answers checks. ``asked``: how often each transaction was asked about, whatever became of the answer."""

    transactions: Sequence[Transaction]
    asked: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_key = {transaction.key: transaction for transaction in self.transactions}

    def ask(self, key: tuple[int, int]) -> str:
        """What its producer says this time."""
        turn = self.asked.get(key, 0)
        self.asked[key] = turn + 1
        answers = self._by_key[key].answers
        return answers[min(turn, len(answers) - 1)]
