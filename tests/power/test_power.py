"""A power cut at any moment takes nothing away that was acknowledged. `make test-power` has `reconcile` in it, too."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from power.disk import Disk, read_journal
from power.record import compiled, overrides, record
from power.restart import moments, restart

if TYPE_CHECKING:
    from pathlib import Path

    from power.disk import Note
    from power.restart import Outcome

pytestmark = pytest.mark.processes

_CUTS = 12


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = compiled(tmp_path_factory.mktemp("recorder"))
    if isinstance(found, str):
        pytest.skip(found)
    return found


def _recorded(recorder: Path, folder: Path, sync: bool) -> tuple[Path, list[Note]]:
    root, journal = folder / "tables", folder / "journal"
    record(recorder, root, journal, transactions=10, reconciled=False, sync=sync)
    return root, read_journal(journal)


def _cut(root: Path, notes: list[Note], seed: int) -> list[Outcome]:
    settings, random = Settings.model_validate(overrides(root, [])), Random(seed)
    return [
        restart(settings, moment, promised, random, None) for moment, promised in moments(notes, root, _CUTS, random)
    ]


def test_gateway_loses_nothing_that_it_acknowledged(recorder: Path, tmp_path: Path) -> None:
    root, notes = _recorded(recorder, tmp_path, sync=True)
    disk = Disk(str(root))
    for note in notes:
        disk.apply(note)
    seen = disk.whole()
    for path in root.rglob("*"):
        assert path.is_dir() or seen.get(f"/{path.relative_to(root)}") == path.read_bytes(), "it was not recorded"
    assert [outcome.faults for outcome in _cut(root, notes, seed=1)] == [[]] * _CUTS


def test_without_sync_it_does(recorder: Path, tmp_path: Path) -> None:
    """So the cuts are ones that can be seen."""
    root, notes = _recorded(recorder, tmp_path, sync=False)
    assert any("was acknowledged" in fault for outcome in _cut(root, notes, seed=1) for fault in outcome.faults)
