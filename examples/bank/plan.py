"""The transfers of the example and their failures: generated from a seed, without any I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from random import Random

TOPIC = "transfers"
GROUP = "accounts"
#: the topic of receipts, and how long after its transfer a debtor gets one
RECEIPTS, RECEIPT_DELAY = "receipts", timedelta(seconds=3)
#: accounts of each service, and the opening balance of the debited ones
ACCOUNTS = 20
OPENING = 1_000
#: an account of the credits service that does not exist
CLOSED_ACCOUNT = ACCOUNTS
#: the tag of a transfer
TAG = "transfer"


class Fate(str, Enum):
    """What happens to a transfer; the values are the report's texts."""

    PLAIN = "nothing"
    POOR = "there is too little money: rolled back"
    SILENT = "debited, but the listener says UNKNOWN"
    KILLED_BEFORE = "the service is killed before its local commit"
    KILLED_AFTER = "the service is killed between local commit and op"
    CLOSED = "the creditor's account is closed: a dead letter"


@dataclass(frozen=True)
class Transfer:
    """``amount`` from one account of the accounts service to one of the credits service."""

    number: int
    debtor: int
    creditor: int
    amount: int
    fate: Fate

    @property
    def transaction_id(self) -> str:
        """A deterministic id, so that a transfer sent again after a crash lands once."""
        return f"transfer-{self.number}"

    @property
    def receipt_id(self) -> str:
        """The transaction id of its receipt."""
        return f"receipt-{self.number}"

    def body(self) -> bytes:
        """The instruction for the credits service."""
        return json.dumps({"creditor": self.creditor, "amount": self.amount}).encode()


def transfers(seed: int, count: int) -> list[Transfer]:
    """The plan: most are plain; every kind of failure occurs at least once if there are 20 or more."""
    random = Random(seed)
    fates = [Fate.PLAIN] * count
    troubles = [Fate.POOR] * (count // 8) + [Fate.SILENT] * (count // 10)
    troubles += [Fate.KILLED_BEFORE, Fate.KILLED_AFTER] * max(1, count // 60) + [Fate.CLOSED]
    for number, fate in zip(random.sample(range(count), min(count, len(troubles))), troubles, strict=False):
        fates[number] = fate
    return [
        Transfer(
            number=number,
            debtor=random.randrange(ACCOUNTS),
            creditor=CLOSED_ACCOUNT if fate is Fate.CLOSED else random.randrange(ACCOUNTS),
            amount=ACCOUNTS * OPENING if fate is Fate.POOR else random.randrange(1, 20),
            fate=fate,
        )
        for number, fate in enumerate(fates)
    ]
