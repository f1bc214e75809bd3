"""The barrier with several gateways: a mark is that of a half message, which its place identifies."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event, text

from checkback.errors import CheckbackError
from checkback.producer import Barrier, BarrierError, CheckRequest, LocalTransactionState, Message

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
#: longer than anything here takes, in seconds
DEADLINE = 20
A, B, C = (0, 7), (1, 7), (1, 8)
_names = count()


@pytest.fixture
def barrier(engine: Engine) -> Barrier:
    made = Barrier(engine)
    made.create_table()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (transaction_id VARCHAR(40), place VARCHAR(40))"))
    return made


def message(name: str, place: tuple[int, int]) -> Message:
    return Message("payments", b"", transaction_id=name).stored_at(*place, "orders")


def check(name: str, place: tuple[int, int]) -> CheckRequest:
    return CheckRequest(*place, name, "orders", "payments", 1, None)


def pay(barrier: Barrier, name: str, place: tuple[int, int], fails: bool = False) -> None:
    """The local transaction of the half message at this place."""
    with barrier.local_transaction(message(name, place)) as connection:
        row = {"id": name, "place": str(place)}
        connection.execute(text("INSERT INTO account VALUES (:id, :place)"), row)
        if fails:
            raise ZeroDivisionError


def ask(barrier: Barrier, name: str, place: tuple[int, int]) -> LocalTransactionState:
    return barrier.check(check(name, place))


def paid(engine: Engine) -> Counter[tuple[str, str]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT transaction_id, place FROM account"))
        return Counter((str(row[0]), str(row[1])) for row in rows)


def test_commit_holds_at_the_place_that_was_acknowledged_only(barrier: Barrier, engine: Engine) -> None:
    """Stored at A without an answer, acknowledged at B: A's half message is rolled back, before and after."""
    assert ask(barrier, "t1", A) is ROLLBACK
    pay(barrier, "t1", B)
    assert [ask(barrier, "t1", place) for place in (A, B, C, B, A)] == [ROLLBACK, COMMIT, ROLLBACK, COMMIT, ROLLBACK]
    assert paid(engine) == {("t1", str(B)): 1}


def test_transaction_told_rollback_may_be_sent_anew(barrier: Barrier) -> None:
    """Its mark is that half message's alone; the half message itself never commits."""
    assert ask(barrier, "t1", A) is ROLLBACK
    with pytest.raises(BarrierError, match="a check said ROLLBACK") as refused:
        pay(barrier, "t1", A)
    assert (refused.value.state, refused.value.committed) == (ROLLBACK, False)
    pay(barrier, "t1", B)
    assert [ask(barrier, "t1", place) for place in (A, B)] == [ROLLBACK, COMMIT]


def test_transaction_sent_again_after_its_commit_is_not_done_again(barrier: Barrier, engine: Engine) -> None:
    """As the same half message it has committed; as another one it must be rolled back, and has committed as well."""
    pay(barrier, "t1", A)
    with pytest.raises(BarrierError, match="committed before") as same:
        pay(barrier, "t1", A)
    with pytest.raises(BarrierError, match="committed as another half message") as other:
        pay(barrier, "t1", B)
    assert [(error.value.state, error.value.committed) for error in (same, other)] == [(COMMIT, True), (ROLLBACK, True)]
    copied = pickle.loads(pickle.dumps(other.value))  # noqa: S301 - made here
    assert (copied.state, copied.committed) == (ROLLBACK, True)
    assert [ask(barrier, "t1", place) for place in (A, B)] == [COMMIT, ROLLBACK]
    assert paid(engine) == {("t1", str(A)): 1}


@pytest.mark.parametrize("places", [(A, A), (A, B)])
def test_groups_do_not_see_each_others_marks(
    barrier: Barrier, engine: Engine, places: tuple[tuple[int, int], ...]
) -> None:
    """The same transaction id in two groups on one database: two transactions."""

    def of(group: str, place: tuple[int, int]) -> Message:
        return Message("payments", b"").stored_at(*place, group, "t1")

    first, second = of("orders", places[0]), of("refunds", places[1])
    assert barrier.check(first) is ROLLBACK
    with barrier.local_transaction(second):
        pass
    assert [barrier.check(each) for each in (first, second)] == [ROLLBACK, COMMIT]
    with pytest.raises(BarrierError) as refused, barrier.local_transaction(first):
        pass
    assert (refused.value.state, refused.value.committed) == (ROLLBACK, False)
    for other in (A, B, C):
        state = barrier.check(CheckRequest(*other, "t1", "refunds", "payments", 1, None))
        assert state is (COMMIT if places[1] == other else ROLLBACK)


def test_mark_is_one_round_trip(barrier: Barrier, engine: Engine) -> None:
    """With the row of the business one more; a check takes two."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: seen.append(statement[:6]))
    pay(barrier, "t1", A)
    assert seen == ["INSERT", "INSERT", "SELECT"]  # and the look at the end
    seen.clear()
    ask(barrier, "t1", A)
    assert [statement for statement in seen if statement in ("INSERT", "SELECT")] == ["INSERT", "SELECT"]


def test_mark_refused_and_committed_nevertheless_changes_nothing(barrier: Barrier, engine: Engine) -> None:
    """BarrierError is caught inside the transaction, which then commits: `return barred.state` in its block."""
    ask(barrier, "told", A)
    pay(barrier, "done", A)
    for name, place in (("told", A), ("done", B), ("done", A)):
        with engine.begin() as connection, pytest.raises(BarrierError):
            barrier.mark(connection, message(name, place))
    assert [ask(barrier, "told", place) for place in (A, B)] == [ROLLBACK, ROLLBACK]
    assert [ask(barrier, "done", place) for place in (A, B)] == [COMMIT, ROLLBACK]
    pay(barrier, "told", C)


def test_message_without_a_place_is_refused(barrier: Barrier) -> None:
    """A listener that kept the message it sent: it has no place, which must not be taken for any."""
    with pytest.raises(CheckbackError, match="no queue_id, queue_offset and producer_group"):
        barrier.check(Message("payments", b"", transaction_id="t1"))


def test_id_that_looks_like_a_mark_is_refused(barrier: Barrier) -> None:
    """Chosen by somebody else it could stand for another transaction's mark."""
    pay(barrier, "t1", A)
    with pytest.raises(CheckbackError, match="use another id"):
        pay(barrier, "@0/7 t1", A)
    for name in ("@0/7", "@x/7 t1", "@", "0/7 t1"):
        pay(barrier, name, A)


@pytest.mark.parametrize("length", [900, 901, 1024])
def test_long_ids_fit_with_their_place(barrier: Barrier, length: int) -> None:
    last = (2**31 - 1, 2**63 - 1)
    names = ["x" * (length - 1) + last for last in "yz"]
    pay(barrier, names[0][:40], last)
    with barrier.local_transaction(message(names[0], last)):
        pass
    assert [ask(barrier, name, last) for name in names] == [COMMIT, ROLLBACK]


@dataclass
class Told:
    """What the barrier may do after what it has said: of one transaction."""

    committed: list[tuple[int, int]] = field(default_factory=list)
    rolled_back: set[tuple[int, int]] = field(default_factory=set)

    def may_commit(self, place: tuple[int, int]) -> bool:
        """A place is barred by its own checks."""
        return not self.committed and place not in self.rolled_back

    def answer(self, place: tuple[int, int]) -> LocalTransactionState:
        """The answer to a check now."""
        return COMMIT if self.committed == [place] else ROLLBACK


_PLACES = st.sampled_from([A, B, C])
_STEPS = st.lists(st.tuples(st.sampled_from(["check", "local", "fails", "marks anyway"]), _PLACES), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_STEPS)
def test_whatever_was_told_holds(barrier: Barrier, engine: Engine, steps: list[tuple[str, tuple[int, int]]]) -> None:
    """Checks and local transactions of any places, one after the other: as Told has it."""
    name, told = f"t{next(_names)}", Told()
    for what, place in steps:
        if what == "check":
            expected = told.answer(place)
            assert ask(barrier, name, place) is expected
            if expected is ROLLBACK:
                told.rolled_back.add(place)
        elif told.may_commit(place):
            if what == "fails":
                with pytest.raises(ZeroDivisionError):
                    pay(barrier, name, place, fails=True)
            elif what == "local":
                pay(barrier, name, place)
                told.committed.append(place)
        elif what == "marks anyway":
            with engine.begin() as connection, pytest.raises(BarrierError):
                barrier.mark(connection, message(name, place))
        else:
            with pytest.raises(BarrierError) as refused:
                pay(barrier, name, place)
            assert refused.value.committed == bool(told.committed)
            assert refused.value.state is told.answer(place)
    assert sum(times for (who, _), times in paid(engine).items() if who == name) == len(told.committed)


def test_half_messages_of_a_transaction_raced_by_checks(barrier: Barrier, engine: Engine) -> None:
    """Sent again by another process: a transaction commits once, and its checks know as which half message."""
    names = [f"t{number}" for number in range(100)]
    told: dict[tuple[str, tuple[int, int]], set[LocalTransactionState]] = {}

    def local(name: str, place: tuple[int, int]) -> None:
        try:
            pay(barrier, name, place)
        except BarrierError as refused:
            told[name, place].add(refused.state)

    def checked(name: str, place: tuple[int, int]) -> None:
        told[name, place].add(ask(barrier, name, place))

    with ThreadPoolExecutor(6) as pool:
        work = []
        for number, name in enumerate(names):
            for place in (A, B):
                told[name, place] = set()
            first, then = (A, B) if number % 2 else (B, A)
            work += [pool.submit(checked, name, first) for _ in range(number % 3)]
            work += [pool.submit(local, name, place) for place in (first, then)]
            work += [pool.submit(checked, name, place) for place in (then, first)]
        for done in work:
            done.result(DEADLINE)
    committed = paid(engine)
    assert set(committed.values()) <= {1}
    for name in names:
        places = [place for place in (A, B) if (name, str(place)) in committed]
        assert len(places) <= 1
        for place in (A, B):
            own = COMMIT if place in places else ROLLBACK
            assert told[name, place] - {UNKNOWN} <= {own}
            assert ask(barrier, name, place) is own
    # All of it has happened, else nothing was tested.
    assert {place for _, place in committed} == {str(A), str(B)}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_is_as_safe(postgres_url: str, level: str) -> None:
    """Checks of two half messages while the local transaction of one of them is in progress."""
    engine = create_engine(postgres_url, isolation_level=level)
    barrier = Barrier(engine, f"places_{level[:6].strip().lower()}", wait=timedelta(seconds=DEADLINE))
    barrier.create_table()
    assert ask(barrier, "t1", A) is ROLLBACK
    with ThreadPoolExecutor(2) as pool:
        with barrier.local_transaction(message("t1", B)):
            asked = {place: pool.submit(ask, barrier, "t1", place) for place in (B, C)}
        assert asked[B].result(DEADLINE) in {COMMIT, UNKNOWN}
        assert asked[C].result(DEADLINE) in {ROLLBACK, UNKNOWN}
    assert [ask(barrier, "t1", place) for place in (A, B, C)] == [ROLLBACK, COMMIT, ROLLBACK]
    with (
        pytest.raises(BarrierError, match="committed as another half message"),
        barrier.local_transaction(message("t1", C)),
    ):
        pass
    engine.dispose()
