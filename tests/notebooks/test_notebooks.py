"""The notebooks: as they are in git, and run on the tables of an evening with outages, in a kernel of their own."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import Position
from checkback.query.status.diagnosis import clock
from checkback.settings import Storage
from checkback.storage.tables import Tables
from checkback.what_if.records import RECORDED
from support import outage
from support.stories import ms
from what_if.lake import write
from what_if.test_replay import LATE, LATE_TIMES

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: those that are run on the tables of an evening with outages, which have no batches
OF_OUTAGE = [file for file in FILES if file.stem != "what-if"]
_LINES = 12

Outputs = Callable[[str, str], list[str]]


def _at(time: datetime, seen: datetime = outage.NOW) -> str:
    """As `why` says it when it is looked at: with the date unless it is the same day."""
    return clock(ms(time), ms(seen))


def _read(file: Path) -> Any:
    import nbformat  # 3 s, which `make test-fast` does not have

    return nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]


def _code(file: Path) -> list[Any]:
    return [cell for cell in _read(file).cells if cell.cell_type == "code"]


def test_all_are_there() -> None:
    assert [file.stem for file in FILES] == ["incident", "pending", "what-if"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_outputs_are_stripped(file: Path) -> None:
    """Nor does anything tell of the machine that ran it."""
    import nbformat

    notebook = _read(file)
    nbformat.validate(notebook)
    for cell in _code(file):
        assert (cell.outputs, cell.execution_count, dict(cell.metadata)) == ([], None, {})
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert "/home/" not in file.read_text("utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_cells_are_short_and_logic_is_elsewhere(file: Path) -> None:
    cells = [cell for cell in json.loads(file.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        source = "".join(cell["source"])
        assert len(source.splitlines()) <= _LINES
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.Import)
            assert not isinstance(node, ast.ImportFrom) or str(node.module).partition(".")[0] == "checkback"


def _consume(root: Path) -> None:
    """A group with dead letters."""
    tables = Tables.of(Storage(root=str(root)))
    queue = QueueState(Position(), dead_letters=3)
    GroupTable(tables, "billing").update(lambda _: GroupState({}, {MessageQueue("orders", 0): queue}))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What the cell with a text showed in a notebook: kinds and plain text. Both ran in one kernel."""
    import nbformat
    from nbclient import NotebookClient

    root = tmp_path_factory.mktemp("evening")
    outage.make(root / "tables")
    _consume(root / "tables")
    whole = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    whole.cells = [cell for file in OF_OUTAGE for cell in _code(file)]
    for cell in whole.cells:
        # The moment of the tables: who runs it by hand writes it there, too.
        cell.source = cell.source.replace("AS_OF = None", f'AS_OF = "{outage.NOW.isoformat()}"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKBACK__STORAGE__ROOT", str(root / "tables"))
        for setting in outage.SETTINGS:
            key, value = setting.split("=")
            patch.setenv(f"CHECKBACK__{key.replace('.', '__').upper()}", value)
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "lib"), os.environ.get("PYTHONPATH", ""))))
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(root / name.lower()))
        NotebookClient(whole, timeout=300, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()

    def shown(stem: str, text: str) -> list[str]:
        cells = [cell for cell in whole.cells if cell.id.startswith(stem) and text in cell.source]
        assert cells, text
        return [
            f"{kind}: {content}" if kind == "text/plain" else kind
            for output in cells[0].outputs
            for kind, content in (output.get("data") or {"text/plain": output.text}).items()
        ]

    return shown


@pytest.mark.processes
def test_pending_tells_who_is_stuck_since_when_and_why(outputs: Outputs) -> None:
    (stuck,) = (text for text in outputs("pending", "cb.stuck") if text.startswith("text/plain"))
    assert "text/html" in outputs("pending", "cb.stuck")
    rows = {line.split()[0]: line for line in stuck.splitlines()[1:]}
    assert set(rows) == {"shipping", "invoices"}
    assert f"no endpoint answers: connection refused, since {_at(outage.DOWN_SINCE)}" in rows["shipping"]
    assert f"answers UNKNOWN, since {_at(outage.UNKNOWN_SINCE)}" in rows["invoices"]


@pytest.mark.processes
def test_pending_tells_how_far_consumers_are(outputs: Outputs) -> None:
    (shown,) = (text for text in outputs("pending", "cb.consumers(") if text.startswith("text/plain"))
    group, topic, _, _, retries, dead_letters = shown.split()[-6:]
    assert (group, topic, retries, dead_letters) == ("billing", "orders", "0", "3")


@pytest.mark.processes
def test_pending_tells_what_is_scheduled(outputs: Outputs) -> None:
    (shown,) = (text for text in outputs("pending", "cb.scheduled") if text.startswith("text/plain"))
    _, row = shown.splitlines()
    assert "payments-330" in row
    assert f"{outage.DELIVER_AT:%Y-%m-%d %H:%M:%S}" in row


@pytest.mark.processes
def test_pending_tells_who_was_pending_then(outputs: Outputs) -> None:
    """When most was: in the outage that is long over."""
    (then,) = (text for text in outputs("pending", "THEN =") if text.startswith("text/plain"))
    assert "orders-" in then
    assert "shipping-" not in then
    (lineage,) = (text for text in outputs("pending", "TRANSACTION =") if text.startswith("text/plain"))
    assert [word for word in ("HALF", "CHECK", "ANSWER", "DECISION") if word in lineage] == [
        "HALF",
        "CHECK",
        "ANSWER",
        "DECISION",
    ]


@pytest.mark.processes
def test_incident_tells_when_who_why_and_what_harm(outputs: Outputs) -> None:
    (told,) = outputs("incident", "worst_outage")
    first, asked, harm = told.strip().splitlines()
    assert first.removeprefix("text/plain: ").startswith(f"orders did not answer from {outage.BEGAN:%Y-%m-%d %H:%M}:")
    assert f"until {outage.OVER:%H:%M}:" in first
    assert first.endswith(": connection refused.")
    assert "http://orders:8901/check" in asked
    assert "were discarded, 0 are still pending" in harm
    assert "Of these 0 were discarded" not in harm
    (said,) = (text for text in outputs("incident", "what_endpoints_said") if text.startswith("text/plain"))
    assert "connection refused" in said
    (then,) = (text for text in outputs("incident", "outage.last") if text.startswith("text/plain"))
    assert f"no endpoint answers: connection refused, since {_at(outage.BEGAN, seen=outage.OVER)}" in then
    assert "shipping" not in then
    (damage,) = (text for text in outputs("incident", "cb.damage") if text.startswith("text/plain"))
    assert "DISCARD" in damage.splitlines()[1]


@pytest.mark.processes
@pytest.mark.parametrize("file", OF_OUTAGE, ids=lambda file: file.stem)
def test_each_plot_is_a_picture(outputs: Outputs, file: Path) -> None:
    plots = [cell.source for cell in _code(file) if re.search(r"plots\.(?!table|busiest)\w+\(", cell.source)]
    assert len(plots) >= 4
    for source in plots:
        assert "image/png" in outputs(file.stem, source)


@pytest.mark.processes
def test_what_if_tells_what_other_rules_would_have_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: two transactions that were discarded before their COMMIT came are saved by more checks."""
    from nbclient import NotebookClient

    segments = {(queue, 0): np.array(list(LATE), RECORDED) for queue in (0, 1)}
    write(tmp_path / "tables", LATE_TIMES, segments)
    monkeypatch.setenv("CHECKBACK__STORAGE__ROOT", str(tmp_path / "tables"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "lib"))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    (file,) = (file for file in FILES if file not in OF_OUTAGE)
    notebook = _read(file)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "2 as they happened, 0 not" in shown[0]["text/plain"]
    assert "image/png" in shown[1]
    assert "text/html" in shown[2]
    assert shown[3]["text/plain"].count("COMMIT") == 2
