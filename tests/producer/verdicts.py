"""Whether what the tables say of the played behaviours is what it must be: each fault in words."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkback.check.query import COUNTED
from checkback.check.wire import NO_ANSWER, SKIPPED
from checkback.messages.half import CONSUMED
from checkback.producer import LocalTransactionState, Message, SendStatus
from producer.recorded import DECISIVE, EXCEPTION, GONE, UNKNOWN, immunity_s

if TYPE_CHECKING:
    from producer.playing import Part

Row = dict[str, Any]
Place = tuple[int, int]
#: an op's store_timestamp is taken before its commit: a batch between the two does not see it
_COMMIT = timedelta(seconds=5)


@dataclass(frozen=True)
class Rules:
    """The settings that were played by, in seconds; ``instances``: endpoint -> A or B."""

    timeout_s: float
    check_interval_s: float
    check_max: int
    instances: dict[str, str]


@dataclass
class Evidence:
    """The rows of the tables. ``ops``: in the order of their commits, with ``version``; ``published``: with topic."""

    halves: list[Row]
    ops: list[Row]
    decisions: list[Row]
    published: list[Row]
    discarded: list[Row]
    requests: list[Row]
    answers: list[Row]
    rejected: list[Row] = field(default_factory=list)

    @staticmethod
    def read(root: Path) -> Evidence:
        """The tables under a folder."""
        published = [row | {"topic": folder.name} for folder in (root / "topics").iterdir() for row in rows(folder)]
        names = ("half", "decisions", "discarded", "check_requests", "check_answers", "rejected")
        half, decisions, discarded, requests, answers, rejected = (rows(root / name) for name in names)
        return Evidence(half, versioned(root / "op"), decisions, published, discarded, requests, answers, rejected)


def rows(folder: Path) -> list[Row]:
    """The rows of a table."""
    found: list[Row] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return found


def versioned(folder: Path) -> list[Row]:
    """The rows of an append-only table with the ``version`` of the commit that brought each, in its order."""
    found: list[Row] = []
    for log in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        for path in [unquote(action["add"]["path"]) for action in actions if "add" in action]:
            found += [row | {"version": int(log.stem)} for row in pq.read_table(folder / path).to_pylist()]
    return found


def faults(parts: Sequence[Part], evidence: Evidence, rules: Rules) -> list[str]:
    """What is wrong with the played parts; nothing is the aim."""
    at = _by_place(evidence)
    found = [f"{len(evidence.rejected)} rejected: {row['reason']}" for row in evidence.rejected[:1]]
    expected = Counter(_place_of(part) for part in parts)
    found += [f"{place}: two transactions have this place" for place, count in expected.items() if count > 1]
    found += [f"{place}: nobody has sent it" for place in at if place not in expected]
    for part in parts:
        tx = at.get(_place_of(part), Transaction())
        found += [f"{part.behaviour.label}: {fault}" for fault in _faults(part, tx, rules)]
    return found


@dataclass
class Transaction:
    """The rows of one transaction."""

    halves: list[Row] = field(default_factory=list)
    ops: list[Row] = field(default_factory=list)
    decisions: list[Row] = field(default_factory=list)
    published: list[Row] = field(default_factory=list)
    discarded: list[Row] = field(default_factory=list)
    requests: list[Row] = field(default_factory=list)
    answers: list[Row] = field(default_factory=list)

    @property
    def first_ops(self) -> list[Row]:
        """The ops that may have decided: of each beginning of the commits, which a batch may have seen, the first."""
        return [
            min(self.ops[:count], key=lambda op: (op["store_timestamp"], op["born_timestamp"], op["state"] == "COMMIT"))
            for count in range(1, len(self.ops) + 1)
        ]


def _place_of(part: Part) -> Place:
    assert part.result is not None
    assert part.result.queue_id is not None
    assert part.result.queue_offset is not None
    return part.result.queue_id, part.result.queue_offset


def _by_place(evidence: Evidence) -> dict[Place, Transaction]:
    at: defaultdict[Place, Transaction] = defaultdict(Transaction)
    for row in evidence.halves:
        at[row["queue_id"], row["queue_offset"]].halves.append(row)
    for row in evidence.ops:
        at[row["queue_id"], row["queue_offset"]].ops.append(row)
    for row in evidence.decisions:
        at[row["queue_id"], row["queue_offset"]].decisions.append(row)
    for row in evidence.published:
        at[row["half_queue_id"], row["half_queue_offset"]].published.append(row)
    for row in evidence.discarded:
        at[row["queue_id"], row["queue_offset"]].discarded.append(row)
    for row in evidence.requests:
        at[row["queue_id"], row["queue_offset"]].requests.append(row)
    for row in evidence.answers:
        at[row["queue_id"], row["queue_offset"]].answers.append(row)
    return at


def _faults(part: Part, tx: Transaction, rules: Rules) -> Iterator[str]:
    counts = {"half": len(tx.halves), "decisions": len(tx.decisions)}
    if set(counts.values()) != {1}:
        yield f"not once each: {counts}"
        return
    decision = tx.decisions[0]
    yield from _delivery(part, tx, decision)
    yield from _checks(part, tx, decision, rules)
    yield from _ops(part, tx, decision, rules)
    yield from _explained(part, tx, decision, rules)
    yield from _told(part, tx, decision)


def _delivery(part: Part, tx: Transaction, decision: Row) -> Iterator[str]:
    """Published once and whole if committed, kept once and whole if discarded, else neither."""
    state, message = decision["state"], part.behaviour.message
    wanted = {"COMMIT": (1, 0), "ROLLBACK": (0, 0), "DISCARD": (0, 1)}[state]
    if (len(tx.published), len(tx.discarded)) != wanted:
        yield f"{state}, and {len(tx.published)} times published, {len(tx.discarded)} times discarded"
    for row in tx.published + tx.discarded:
        real_queue_id = row["queue_id"] if "topic" in row else row["real_queue_id"]
        kept = (row.get("topic") or row["real_topic"], real_queue_id, row["body"], row["tags"], row["keys"])
        sent = (message.topic, message.real_queue_id, message.body, message.tags, message.keys)
        names = (row["producer_group"], row["transaction_id"])
        if kept != sent or dict(row["properties"]) != kept_properties(message):
            yield f"sent {sent}, {message.properties}; kept {kept}, {row['properties']}"
        if names != (part.behaviour.group, part.transaction_id):
            yield f"it is {names}"


def kept_properties(message: Message) -> dict[str, str]:
    """The properties that the tables have: without those for Checkback."""
    return {name: text for name, text in message.properties.items() if name not in CONSUMED}


def _checks(part: Part, tx: Transaction, decision: Row, rules: Rules) -> Iterator[str]:
    """Numbered, in their time, not after the decision, and each answered as its script says."""
    requests = sorted(tx.requests, key=lambda row: (row["requested_at"], row["check_times"]))
    numbers, times = ([row[name] for row in requests] for name in ("check_times", "requested_at"))
    # The last check is requested again until it was sent (docs/protocol.md, rule 6).
    if numbers != [min(number, rules.check_max) for number in range(1, len(numbers) + 1)]:
        yield f"the checks have the numbers {numbers}"
        return
    most = min(len(numbers), rules.check_max)
    # The last one counts when it was sent: an op may come before that.
    least = most - 1 if most == rules.check_max and decision["state"] != "DISCARD" else most
    if not least <= decision["check_times"] <= most:
        yield f"{most} checks, the decision says {decision['check_times']}"
    sent = [op["store_timestamp"] for op in tx.ops if op["state"] == COUNTED]
    if any(moment + _COMMIT < again for again in times[rules.check_max :] for moment in sent):
        yield f"check {rules.check_max} was requested again after it was sent"
    own = immunity_s(part.behaviour.message)
    half = tx.halves[0]
    earliest = min(half["born_timestamp"], half["store_timestamp"])
    pause = timedelta(seconds=rules.timeout_s if own is None else own)
    for number, asked in zip(numbers, times, strict=True):
        if asked < earliest + pause:
            yield f"check {number} came {earliest + pause - asked} too early"
        if asked >= decision["decided_at"]:
            yield f"check {number} came after the decision"
        earliest, pause = asked, timedelta(seconds=rules.check_interval_s)
    if decision["state"] == "DISCARD" and decision["decided_at"] < earliest + pause:
        yield "discarded before the last answer could count"
    yield from _answers(part, tx, decision, rules, numbers, times)


def _answers(
    part: Part, tx: Transaction, decision: Row, rules: Rules, numbers: list[int], times: list[datetime]
) -> Iterator[str]:
    """Each check, of these ``numbers`` requested at these ``times``, is answered once and as its script says."""
    if sorted(row["check_times"] for row in tx.answers) != numbers:
        yield f"{len(numbers)} checks and {len(tx.answers)} answers"
    for row in tx.answers:
        if row["outcome"] == SKIPPED and row["endpoint"] is None:
            # Nobody was asked: only right if a newer check or the decision had come before it was their turn.
            after = times[row["check_times"] :]
            if row["answered_at"] < min([decision["decided_at"], *after]):
                yield f"check {row['check_times']} was skipped, and nothing had overtaken it"
            continue
        instance = rules.instances.get(row["endpoint"])
        said = part.behaviour.says(row["check_times"], instance) if instance else None
        if part.behaviour.group == GONE:
            said = NO_ANSWER
        if row["outcome"] != (UNKNOWN if said == EXCEPTION else said):
            yield f"check {row['check_times']} was answered {row['outcome']} by {row['endpoint']}, {row['error']}"


def _ops(part: Part, tx: Transaction, decision: Row, rules: Rules) -> Iterator[str]:
    """The producer's first op, one for each answer that decides, and one that tells of the last check.

    The first op against a decision that the gateway knew is kept as well, though it is answered 409.
    """
    own = [op for op in tx.ops if op["source"] == "producer"]
    refused = [
        op for op in own[1:] if op["state"] != decision["state"] and op["store_timestamp"] >= decision["decided_at"]
    ]
    counted = [op["state"] for op in own if op not in refused]
    if counted != list(part.behaviour.own[:1]) or len(refused) > 1:
        yield f"the producer's ops are {[op['state'] for op in own]}"
    told = [row["outcome"] for row in tx.answers if row["outcome"] in DECISIVE]
    last = [row["outcome"] for row in tx.answers if row["check_times"] == rules.check_max]
    told += [COUNTED for outcome in last if outcome not in (*DECISIVE, SKIPPED)]
    if sorted(op["state"] for op in tx.ops if op["source"] == "check") != sorted(told):
        yield f"the answers told {told}, the ops {[(op['source'], op['state']) for op in tx.ops]}"


def _explained(part: Part, tx: Transaction, decision: Row, rules: Rules) -> Iterator[str]:
    """The first op decides; without any, the end of the checks."""
    decided = (decision["state"], decision["source"])
    if decision["state"] != "DISCARD":
        if decided not in [(op["state"], op["source"]) for op in tx.first_ops]:
            yield f"{decided}, and the ops are {[(op['state'], op['source']) for op in tx.ops]}"
        if decision["state"] not in part.behaviour.may_end(rules.check_max):
            yield f"{decided}, which its script does not allow"
        return
    last = max((row["check_times"] for row in tx.requests), default=0)
    if (decision["source"], decision["reason"], last) != ("checkback", "CHECK_MAX", rules.check_max):
        yield f"discarded by {decision['source']}: {decision['reason']} after {decision['check_times']} checks"
    # An answer or op that came when the message was discarded already: only a machine that is too slow for it.
    early = [
        op["state"]
        for op in tx.ops
        if op["state"] != COUNTED and op["store_timestamp"] < decision["decided_at"] - _COMMIT
    ]
    if early:
        yield f"discarded, and before that came {early}"
    # A check that was skipped asked nobody: then its answer is one that the script had and nobody heard.
    skipped = any(row["outcome"] == SKIPPED for row in tx.answers)
    if not tx.ops and not skipped and "DISCARD" not in part.behaviour.may_end(rules.check_max):
        yield "discarded, which its script does not allow"


def _told(part: Part, tx: Transaction, decision: Row) -> Iterator[str]:
    """What the SDK and the gateway told the producer is what has happened."""
    behaviour, result = part.behaviour, part.result
    assert result is not None
    half = tx.halves[0]
    if result.send_status is not SendStatus.SEND_OK or half["transaction_id"] != result.transaction_id:
        yield f"the result is {result}, the half message {half['transaction_id']}"
    state = behaviour.local if behaviour.local in DECISIVE else UNKNOWN
    if result.local_transaction_state is not LocalTransactionState(state):
        yield f"the local transaction was {state}, the result says {result.local_transaction_state}"
    if (result.local_error is not None) != (behaviour.local == EXCEPTION) or result.op_error is not None:
        yield f"local error {result.local_error}, op error {result.op_error}"
    if result.op_sent != (state != UNKNOWN):
        yield f"{state}, op sent: {result.op_sent}"
    # An op that a check's answer has overtaken is accepted: the door does not read them.
    overtaken = decision["source"] == "check" or decision["state"] == "DISCARD"
    if result.op_sent and state != decision["state"] and not overtaken:
        yield f"the op {state} was accepted, the decision is {decision['state']}"
    seen = {"group": (422, "wrong_group"), "offset": (422, "wrong_transaction_id")}
    before = list(behaviour.own[: len(behaviour.own) - len(behaviour.later)])
    for what, status, code in part.by_hand:
        wanted = seen.get(what)
        if wanted is None:
            wanted = (200, "") if not before else (200, "repeated") if what == before[0] else (409, "contradiction")
            before.append(what)
        if (status, code) != wanted and not (what == "offset" and (status, code) == (422, "wrong_group")):
            yield f"the op {what} by hand was answered {status} {code}, not {wanted}"
    if len(part.by_hand) != len(behaviour.later) + (behaviour.misdirected is not None):
        yield f"by hand came {part.by_hand}"
