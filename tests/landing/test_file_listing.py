"""Which files are listed, each once, whatever somebody puts into the folder; and in Spark's form. Without Spark."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import CheckbackError, SettingsError
from checkback.landing import file_listing, hadoop_glob
from checkback.landing.file_listing import Listing, SparkListing, list_files, uri_of
from checkback.landing.hadoop_glob import matching

if TYPE_CHECKING:
    from pathlib import Path

OUTSIDE = "a link that leads out of the folder that is landed"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def listed(inbox: Path, encoding: str = "UTF-8") -> Listing:
    return list_files(lambda _: [str(inbox)], os.path.realpath(inbox), encoding)


def names(inbox: Path, encoding: str = "UTF-8") -> list[str]:
    return sorted(os.path.relpath(file.path, inbox) for file in listed(inbox, encoding).files)


def test_files_of_all_folders_but_hidden_ones(inbox: Path) -> None:
    for name in ("a", "sub/b", "sub/deeper/c", "_SUCCESS", ".d", "_tmp/e", "sub/.tmp/f", "g._COPYING_"):
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        (inbox / name).write_text("xy")
    os.mkfifo(inbox / "pipe")
    (inbox / "dangling").symlink_to("nowhere")
    changed = os.stat(inbox / "a").st_ctime_ns // 1_000_000
    assert names(inbox) == ["a", "sub/b", "sub/deeper/c"]
    assert (str(inbox / "a"), changed, 2) in listed(inbox).files
    assert listed(inbox).passed == {}
    assert list_files(
        lambda _: [f"{inbox}/a", f"{inbox}/_SUCCESS", f"{inbox}/gone"], os.path.realpath(inbox), "UTF-8"
    ).files == [(f"{inbox}/a", changed, 2)]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", "a.gz ab b sub x:y [1]"),
        ("a*", "a.gz ab"),
        ("?", "b"),
        ("[a-b]", "b"),
        ("[^b]?", "ab"),
        ("[!a]*", "b sub x:y [1]"),
        ("{a.gz,sub/{c,d},nothing}", "a.gz sub/c sub/d"),
        ("*/[c]", "sub/c"),
        (r"\[1\]", "[1]"),
        (r"[\[]*", "[1]"),
        (r"[\]\[x]*", "x:y [1]"),
        (r"[\!x]*", "x:y"),
        (r"\!*", ""),
        (r"x\:[y]", "x:y"),
        ("closed/*", ""),
        ("nothing", ""),
    ],
)
def test_globs_are_hadoop_s(inbox: Path, glob: str, expected: str) -> None:
    (inbox / "sub").mkdir()
    for name in ("a.gz", "ab", "b", "x:y", "[1]", "sub/c", "sub/d"):
        (inbox / name).write_text("")
    told: list[str] = []
    found = matching(f"{inbox}/{glob}", lambda path, _: told.append(path))
    assert sorted(os.path.relpath(path, inbox) for path in found) == sorted(expected.split())
    assert glob != "closed/*" or told == [f"{inbox}/closed"]


texts = st.text("ab-", max_size=12)
stars = st.lists(st.sampled_from(["*", "*", "?", "a", "b", "-", "[ab]", "[^a]"]), max_size=8).map("".join)


@given(glob=stars, name=texts)
def test_star_is_any_number_of_characters(glob: str, name: str) -> None:
    found = re.compile(hadoop_glob._regex(glob, glob)).fullmatch(name)
    assert bool(found) == fnmatch.fnmatchcase(name, glob.replace("^", "!"))


@pytest.mark.parametrize("glob", ["-".join("*" * 9) + ".json", "?*" * 100 + "a", "*" * 100 + "a"])
def test_name_makes_no_long_search(glob: str) -> None:
    """Tried in every way, it would be one beyond anybody's patience."""
    assert re.compile(hadoop_glob._regex(glob, glob)).fullmatch("-" * 250) is None


def test_globs_look_into_each_folder_once(inbox: Path) -> None:
    (inbox / "sub").mkdir()
    (inbox / "sub" / "a").write_text("")
    for number in range(40):
        (inbox / f"{number}").symlink_to(".")
    (inbox / "b-sub").symlink_to("sub")
    assert matching(f"{inbox}/*/*/*/*/*/a", print) == [f"{inbox}/0/0/0/0/sub/a"]
    assert matching(f"{inbox}/*/a", print) == [f"{inbox}/sub/a"]


@pytest.mark.parametrize("glob", ["{a,b", "[a"])
def test_glob_that_is_not_closed_is_refused(glob: str) -> None:
    with pytest.raises(SettingsError, match="close it"):
        matching(f"/in/{glob}", print)


def test_loops_of_links_cost_nothing(inbox: Path) -> None:
    (inbox / "a").write_text("")
    (inbox / "sub").mkdir()
    (inbox / "sub" / "b").write_text("")
    for name, target in (("x", "."), ("y", "."), ("sub/up", ".."), ("a-sub", "sub"), ("self", "self")):
        (inbox / name).symlink_to(target)
    # No loop, and 2^40 paths all the same.
    for number in range(40):
        level = inbox / f"level{number}"
        level.mkdir()
        for name in "lr":
            (level / name).symlink_to(f"../level{number + 1}")
    assert names(inbox) == ["a", "sub/b"]
    assert list(listed(inbox).passed) == [f"{inbox}/self"]


def test_links_lead_within_the_folder_only(inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("")
    (inbox / "_current").mkdir()
    (inbox / "_current" / "a").write_text("")
    (inbox / "now").symlink_to("_current")
    (inbox / "out").symlink_to("../home")
    assert names(inbox) == ["now/a"]
    assert listed(inbox).passed == {f"{inbox}/out": OUTSIDE}
    # The folder itself may be a link.
    (tmp_path / "link").symlink_to("in")
    assert [file.path for file in listed(tmp_path / "link").files] == [f"{tmp_path}/link/now/a"]


def test_what_cannot_be_read_holds_nothing_up(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "open"):
        (inbox / name).mkdir()
        (inbox / name / "a").write_text("")
    scan = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root may read all
    assert names(inbox) == ["open/a"]
    assert listed(inbox).passed == {f"{inbox}/closed": "cannot be read: permission denied"}

    def broken(path: str) -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", broken)
    listing = SparkListing(str(inbox / "l"), lambda _: [str(inbox)], lambda: str(inbox), "UTF-8", "in")
    with pytest.raises(CheckbackError, match=r"^in: cannot be listed: Input/output error; repair that and run again"):
        listing.refresh()


def test_names_that_java_cannot_read_are_told_of_once(
    inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (inbox / "zahlung-ü").write_text("")
    with open(os.fsencode(inbox) + b"/\xff\xfe", "w"):
        pass
    (inbox / "a").write_text("")
    assert names(inbox) == ["a", "zahlung-ü"]
    assert names(inbox, "ANSI_X3.4-1968") == ["a"]
    listing = SparkListing(str(tmp_path / "l"), lambda _: [str(inbox)], lambda: str(inbox), "UTF-8", "in")
    listing.refresh()
    listing.refresh()
    reason = "its name is not UTF-8, by which Java reads names; rename it"
    assert caplog.messages == [f"{inbox}/\\udcff\\udcfe: skipped: {reason}"]


TOO_LONG = "its path, as a URI, has over 1000 characters; give it a shorter one"


def test_paths_that_cost_much_memory_are_passed_over(inbox: Path) -> None:
    """Of blanks, each of which takes three characters."""
    folder = inbox / (" " * 200)
    deep = folder / ("x" * 200) / (" " * 200)
    deep.mkdir(parents=True)
    for name in ("a", "a" * 200, "b" * 100 + " " * 100):
        (folder / name).write_text("")
    (deep / "a").write_text("")
    found = listed(inbox)
    assert sorted(len(os.path.basename(file.path)) for file in found.files) == [1, 200]
    assert found.passed == {str(deep): TOO_LONG, f"{folder}/{'b' * 100}{' ' * 100}": TOO_LONG}


def test_warnings_have_a_bound(inbox: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(30):
        (inbox / f"{number}").symlink_to(f"{number}")
    SparkListing(str(tmp_path / "l"), lambda _: [str(inbox)], lambda: str(inbox), "UTF-8", "in").refresh()
    assert len(caplog.messages) == file_listing._WARNINGS + 1
    assert caplog.messages[-1] == "in: 10 more are skipped"


def test_log_is_that_of_a_file_sink_and_written_when_files_change(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inbox / "a b").write_text("xy")
    changed = os.stat(inbox / "a b").st_ctime_ns // 1_000_000
    listing = SparkListing(str(tmp_path / "l"), lambda _: [str(inbox)], lambda: str(inbox), "UTF-8", "in")
    log = tmp_path / "l" / "_spark_metadata" / "0"
    listing.refresh()
    version, line = log.read_text().split("\n")
    entry = {"path": f"file://{inbox}/a%20b", "size": 2, "isDir": False, "modificationTime": changed, "action": "add"}
    assert version == "v1"
    assert json.loads(line) == entry | {"blockReplication": 1, "blockSize": 1 << 25}
    first = log.stat().st_ino
    listing.refresh()
    assert log.stat().st_ino == first
    (inbox / "c").write_text("")
    monkeypatch.setattr(file_listing, "_entry", lambda file: f"new: {file.path}")
    listing.refresh()
    assert log.read_text().split("\n") == ["v1", line, f"new: {inbox}/c"]
    assert os.listdir(log.parent) == ["0"]


def test_time_that_was_given_to_a_file_puts_it_before_no_other(inbox: Path) -> None:
    (inbox / "first").write_text("")
    (inbox / "later").write_text("")
    os.utime(inbox / "later", (1, 1))
    times = {os.path.basename(file.path): file.time for file in listed(inbox).files}
    assert times["first"] <= times["later"]


@pytest.mark.parametrize("time", [1 << 62, -(1 << 62)])
def test_time_beyond_java_s_is_bounded(time: int) -> None:
    assert abs(file_listing.in_ms(time * 10**9)) == 1 << 53


def test_uri_is_quoted_as_java_does() -> None:
    assert uri_of("/a b%20/[x]{a,b}*?/ü😀/n\n\u00a0\u2028\x85;@&=+$,~!()'\"^\\:") == (
        "file:///a%20b%2520/%5Bx%5D%7Ba,b%7D*%3F/ü😀/n%0A%C2%A0%E2%80%A8%C2%85;@&=+$,~!()'%22%5E%5C:"
    )
