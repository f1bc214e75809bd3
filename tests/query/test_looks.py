"""Tables are looked at side by side, in an order in which what happens meanwhile misleads nobody."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from checkback.cli import main
from checkback.query.answers import Answers
from checkback.query.engines import duckdb_engine
from checkback.query.engines.duckdb_engine import DuckDBEngine
from checkback.query.pending_transactions import pending_question
from checkback.query.undelivered_messages import SCHEDULED, unpublished_question
from checkback.query.versions.table_versions import FixedTables
from checkback.query.versions.view import View
from checkback.settings import Settings, Storage
from checkback.storage.tables import Tables
from support.fault_proxy import fault_proxy, in_sequence_since, requests_since, set_latency
from support.s3_server import options
from support.stories import DECIDED, DONE, Row, Transaction, batch, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

pytestmark = pytest.mark.slow

_NAMES = ("half", "op", "decisions", "check_requests", "check_answers", "deliveries", "unpublished")
#: (s); much longer than it takes to send a request
_LATENCY_S = 0.03


def _tables(root: str, **storage: Any) -> Tables:
    return Tables.of(Storage.model_validate({"root": root, **storage}))


@pytest.fixture
def slow(s3: Tables, s3_port: int) -> Iterator[tuple[Settings, int]]:
    """A transaction of each kind in an object store, behind a proxy that takes its time; the settings, its port."""
    done, scheduled, pending = Transaction(1), Transaction(2), Transaction(3)
    rows = [*done.committed(), scheduled.half(), scheduled.decision(deliver_at=DONE), pending.half(), pending.check()]
    write(None, s3, [*rows, batch(0, DECIDED)])
    s3.create(cast("Any", None), *_NAMES)
    with fault_proxy(s3_port) as port:
        set_latency(port, _LATENCY_S)
        yield Settings.model_validate({"storage": {"root": s3.root, "options": options(port)}}), port


def _engine(settings: Settings) -> DuckDBEngine:
    return DuckDBEngine(Tables.of(settings.storage))


@pytest.mark.processes
def test_all_tables_are_looked_at_in_the_time_of_three(slow: tuple[Settings, int]) -> None:
    """In their turns: those that say that something is over come last. What was looked at is read without a look."""
    settings, port = slow
    with _engine(settings) as engine:
        in_sequence_since(port)
        engine.look(["half"])
        one = in_sequence_since(port)
        found = engine.look([name for name in _NAMES if name != "half"], ["half"], ["rejected"])
        assert in_sequence_since(port) <= one + 2 + 3
        assert found == dict.fromkeys(_NAMES, 0) | {
            "half": 1,
            "op": 1,
            "decisions": 1,
            "check_requests": 1,
            "rejected": None,
        }
        requests_since(port)
        for name in _NAMES:
            engine.read(name, found[name])
        assert requests_since(port) == {}


@pytest.mark.processes
def test_a_question_takes_the_time_of_its_slowest_table(slow: tuple[Settings, int]) -> None:
    """Requests one after the other: a log's opening, in three turns, and what is read of the files."""
    settings, port = slow
    answers = Answers(settings)
    in_sequence_since(port)
    answers.status()
    assert in_sequence_since(port) <= 22  # 14; all 76 one after the other
    answers.status()
    assert in_sequence_since(port) <= 15  # 9 of 36


class _Busy(DuckDBEngine):
    """An engine of which tables go on while it looks at them: by ``rows`` as soon as it has looked at ``after``."""

    after = ""
    rows: Sequence[Row] = ()

    def _newest(self, name: str) -> int | None:
        found = super()._newest(name)
        if name == self.after and self.rows:
            write(None, self.tables, list(self.rows))
            self.rows = ()
        return found


_NEW = Transaction(9, 1)


@pytest.mark.parametrize(
    ("after", "rows", "ask"),
    [
        (
            "decisions",
            [_NEW.half(), _NEW.decision()],
            lambda view: view.ask(pending_question(Settings())),
        ),
        (
            "deliveries",
            [_NEW.decision(deliver_at=DONE), ("deliveries", _NEW.key | {"delivered_at": DONE, "deliver_at": DONE})],
            lambda view: view.ask(SCHEDULED),
        ),
        ("topics/a", [_NEW.unpublished(), _NEW.published()], lambda view: view.ask(*unpublished_question(view))),
    ],
    ids=["pending", "scheduled", "unpublished"],
)
def test_what_is_over_meanwhile_is_not_shown(
    after: str, rows: list[Row], ask: Callable[[View], pa.Table], tmp_path: Path
) -> None:
    tables = _tables(str(tmp_path))
    one = Transaction(1)
    write(None, tables, [*one.committed(), one.unpublished()])
    tables.create(cast("Any", None), *_NAMES)
    engine = _Busy(tables)
    with engine:
        engine.after, engine.rows = after, rows
        assert ask(View.on(engine)).num_rows == 0
        assert not engine.rows


def test_batch_that_ends_during_the_look_is_not_of_the_moment(tmp_path: Path) -> None:
    """Which batches are complete is read before the versions: all that a batch wrote is in those."""
    tables = _tables(str(tmp_path))
    write(None, tables, [*Transaction(1).committed(), batch(0, DECIDED)])
    later = DECIDED + timedelta(seconds=1)
    engine = _Busy(tables)
    with engine:
        engine.after = "decisions"
        engine.rows = [
            _NEW.half(),
            _NEW.decision(decided_at=later, batch_id=1),
            _NEW.published(published_at=later, batch_id=1),
            batch(1, later),
        ]
        view = View.on(engine, DONE)
        view.look("decisions", "topics/a")
        counts = [
            engine.arrow(engine.query("SELECT * FROM {t}", {"t": view.read(name)}, {})).num_rows
            for name in ("decisions", "topics/a")
        ]
        assert not engine.rows
    assert counts == [1, 1]


@pytest.mark.processes
def test_audit_looks_at_what_batches_write_before_the_sources(slow: tuple[Settings, int]) -> None:
    """Of what the others refer to nothing is missing then."""
    settings, _ = slow

    class Recording(DuckDBEngine):
        def _newest(self, name: str) -> int | None:
            events.append(("begin", name))
            found = super()._newest(name)
            events.append(("end", name))
            return found

    events: list[tuple[str, str]] = []
    with Recording(Tables.of(settings.storage)) as engine:
        fixed = FixedTables.take(engine)
    assert {"half", "op", "decisions", "topics/a"} <= set(fixed.versions)
    sources = [events.index(("begin", name)) for name in ("half", "op")]
    outputs = [at for at, (kind, name) in enumerate(events) if kind == "end" and name not in ("half", "op")]
    assert max(outputs) < min(sources)
    assert events.index(("begin", "decisions")) < events.index(("end", "topics/a"))


def test_view_is_of_one_moment_and_the_next_of_a_later_one(tmp_path: Path) -> None:
    tables = _tables(str(tmp_path))
    write(None, tables, [Transaction(1).half()])
    with DuckDBEngine(tables) as engine:
        view = View.on(engine)
        assert view.ask(pending_question(Settings())).num_rows == 1
        write(None, tables, [Transaction(2).half()])
        assert view.ask(pending_question(Settings())).num_rows == 1
        assert View.on(engine).ask(pending_question(Settings())).num_rows == 2


@pytest.mark.processes
def test_lineage_is_asked_twice_on_a_page(slow: tuple[Settings, int]) -> None:
    settings, _ = slow
    with Answers(settings).together() as page:
        found = [page.lineage("tx-1-0").num_rows for _ in range(2)]
    assert found == [4, 4]


def test_many_small_files_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before they are read; by the commands on stderr, in one line."""
    monkeypatch.setattr(duckdb_engine, "_MANY", 3)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    tables = Tables.of(settings.storage)
    for number in range(3):
        write(None, tables, [Transaction(number).half(), *([Transaction(number).op()] if number else [])])
    said: list[str] = []
    answers = Answers(settings, say=said.append)
    answers.pending()
    answers.status()
    line = "many small files make this slow: half 3; run `checkback maintain`"
    assert said == [line]
    for command in ("status", "tx list", "audit"):
        main([*command.split(), "--set", f"storage.root={tmp_path}"])
        assert capfd.readouterr().err == f"checkback: {line}\n", command
    monkeypatch.setattr(duckdb_engine, "_SMALL", 10)
    main(["tx", "list", "--set", f"storage.root={tmp_path}"])
    assert capfd.readouterr().err == ""
