"""Which commits to the journal the loop makes itself, and when it takes none."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.journal.commit_loop import _HELD_UP_S, _LEFT_S, _SHORT_S, _SMALL, InLoop, JournalIntake
from gateway.test_journal import journal_in

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_small_commits_are_made_in_the_loop_while_the_disk_is_fast() -> None:
    in_loop = InLoop()
    for number in range(1000):
        assert in_loop.fits(_SMALL, number)
        in_loop.took(_SHORT_S, number)
    assert not in_loop.fits(_SMALL + 1, 1000)


def test_one_slow_flush_of_many_changes_nothing() -> None:
    in_loop = InLoop()
    for number in range(1000):
        in_loop.took(_HELD_UP_S, number)
        in_loop.took(_SHORT_S, number)
        assert in_loop.fits(1, number)


@given(st.lists(st.floats(2 * _SHORT_S, 1.0), min_size=200, max_size=200))
def test_a_slow_disk_holds_up_the_loop_for_a_bounded_part_of_the_time(seconds: list[float]) -> None:
    in_loop, now, held_up = InLoop(), 0.0, 0.0
    for took in seconds:
        inside = in_loop.fits(1, now)
        now += took
        if inside:
            held_up += took
            in_loop.took(took, now)
    longest = max(seconds)
    assert held_up <= (now / _LEFT_S + 1) * (_HELD_UP_S + longest)


def test_disk_without_room_is_told_once_when_it_begins_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before the first message, and of which kind the lack is."""
    disk = SimpleNamespace(f_bavail=(64 << 20), f_frsize=1, f_files=9, f_favail=9, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    with journal_in(tmp_path) as journal:
        disk.f_files = 0
        intake = JournalIntake(journal, lambda: None)
        said = []
        for change in (
            {},
            {"f_bavail": (64 << 20) + 1},
            {"f_files": 9},
            {"f_favail": 16},
            {"f_flag": os.ST_RDONLY},
            {"f_flag": os.ST_NOSUID},
        ):
            vars(disk).update(change)
            problems = [intake.look(), intake.refusal(1), intake.refusal(1)]
            assert len({problem is None for problem in problems}) == 1
            said.append("" if problems[1] is None else problems[1].detail.split(": ")[1].split(";")[0])
    assert said == [
        "on its disk 64 MiB are free, 64 MiB are needed",
        "",
        "on its disk 9 files can be made, 16 are needed (inodes)",
        "",
        "its disk is mounted read-only",
        "",
    ]
    assert [record.getMessage()[:34] for record in caplog.records] == [
        "the journal takes no messages: " + str(journal.path)[:3],
        "the journal takes messages again: ",
    ] * 3
    assert "until then every message is refused (503 journal_full)" in caplog.text
