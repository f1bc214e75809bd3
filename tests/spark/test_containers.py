"""Spark starts on machines that are not set up for it, as in containers, or one line says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.application.small_run import land
from checkback.settings import Storage
from checkback.spark import jars
from checkback.storage.tables import Tables
from support.jvm import ENVIRON
from support.rows import count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Sandbox = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.spark, pytest.mark.processes]

#: a user id that no machine has a name for
UID = 1_000_730_000
#: where a sandbox has the test's folder: those above that may be closed to other users
HERE = "/mnt"
_ISOLATED = ["unshare", "--mount", "--uts", "--propagation", "private"]
_READS_ALL = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """Runs `checkback` with these arguments, with mounts and a host name of its own, and no environment but ours.

    In HERE. ``setup``: shell commands of root in there. ``uid``: then this user, who may read all programs.
    """
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("util-linux's unshare and setpriv are missing")
    allowed = subprocess.run([*_ISOLATED, "mount", "-t", "tmpfs", "tmpfs", HERE], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no mounts of our own: {allowed.stderr.decode().strip()}")
    for folder in (tmp_path, tmp_path / "scratch"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)

    def run(
        *arguments: str, setup: str = "true", uid: int | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        user = [] if uid is None else ["setpriv", f"--reuid={uid}", "--clear-groups", *_READS_ALL]
        given = {"PATH": os.environ["PATH"], "TMPDIR": f"{HERE}/scratch", "PYTHONDONTWRITEBYTECODE": "1", **ENVIRON}
        given |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ} | environ
        command = [*user, "env", "-i", *(f"{name}={value}" for name, value in given.items())]
        command += [sys.executable, "-m", "checkback", *arguments]
        script = f'set -e; mount --bind {tmp_path} {HERE}; cd {HERE}; {setup}; exec "$@"'
        whole = [*_ISOLATED, "sh", "-c", script, "sh", *command]
        return subprocess.run(whole, capture_output=True, text=True, timeout=600, check=False)

    return run


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Tables that every user may write in: two half messages, one of them committed."""
    root = tmp_path / "lake"
    land(None, Tables.of(Storage(root=str(root))))  # type: ignore[arg-type]  # no Spark is needed
    for path in (root, *root.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return root


def _reconcile(sandbox: Sandbox, lake: Path, setup: str = "true", uid: int | None = None, **environ: str) -> str:
    """The line on stderr, or none after a run that has published the message."""
    arguments = ("reconcile", "--available-now", "--set", f"storage.root={HERE}/lake")
    run = sandbox(*arguments, setup=setup, uid=uid, **environ)
    assert run.stderr.count("\n") == (run.returncode != 0), run.stderr
    if run.returncode == 0:
        assert count_of(lake, "topics/topic") == 1
    return run.stderr


def test_user_without_a_name_or_a_home(sandbox: Sandbox, lake: Path) -> None:
    """As in every pod of OpenShift: Ivy wants a home, Hadoop a name."""
    assert _reconcile(sandbox, lake, uid=UID) == ""


def test_installation_and_home_that_cannot_be_written(sandbox: Sandbox, lake: Path, tmp_path: Path) -> None:
    """As of a service whose user has not installed it: what `make install` fetched is not fetched again."""
    if not any(jars.installation().glob("jars-*.json")):
        pytest.skip("the installation has no JARs; `make install` fetches them")
    read_only = f"mount --bind {sys.prefix} {sys.prefix}; mount -o remount,bind,ro {sys.prefix}"
    assert _reconcile(sandbox, lake, read_only, uid=UID, HOME="/") == ""
    assert not list((tmp_path / "scratch").glob("*/ivy"))


def test_temporary_files_without_programs(sandbox: Sandbox, lake: Path) -> None:
    """As Docker mounts /tmp by `--tmpfs`: native libraries are loaded from TMPDIR, or nothing starts."""
    no_programs = "mount -t tmpfs -o noexec tmpfs /tmp"
    told = _reconcile(sandbox, lake, no_programs, TMPDIR="")
    assert told == (
        "checkback: TMPDIR: /tmp is mounted noexec, and Spark loads native libraries from there; "
        "name a folder on another mount in TMPDIR, or mount it with exec\n"
    )
    assert _reconcile(sandbox, lake, no_programs) == ""


def test_long_path_of_temporary_files(sandbox: Sandbox, lake: Path) -> None:
    """Longer than a Unix domain socket's may be."""
    folder = f"{HERE}/{'long' * 25}"
    assert _reconcile(sandbox, lake, f"mkdir {folder}", TMPDIR=folder) == ""


def test_host_name_without_an_address(sandbox: Sandbox, lake: Path) -> None:
    assert _reconcile(sandbox, lake, "hostname name-of-no-host") == ""


def test_start_that_fails_says_the_last_cause(sandbox: Sandbox, lake: Path) -> None:
    told = _reconcile(sandbox, lake, "hostname name-of-no-host", CHECKBACK__SPARK='{"spark.master": "spark://host:1"}')
    assert told.startswith("checkback: Spark did not start: java.net.UnknownHostException: name-of-no-host: ")


def test_python_for_other_programs(sandbox: Sandbox, lake: Path) -> None:
    assert _reconcile(sandbox, lake, PYSPARK_PYTHON="/usr/bin/python3", PYSPARK_DRIVER_PYTHON="/nowhere") == ""


def test_default_file_system_elsewhere(sandbox: Sandbox, lake: Path, tmp_path: Path) -> None:
    """As on the edge node of a cluster: a path without a scheme is one of this machine, for Spark, too."""
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:1</value></property></configuration>"
    )
    assert _reconcile(sandbox, lake, HADOOP_CONF_DIR=HERE) == ""
    name = {"queue_id": 9, "queue_offset": 0, "transaction_id": "t", "producer_group": "g", "born_timestamp": 0}
    (tmp_path / "half.json").write_text(json.dumps({**name, "real_topic": "topic", "real_queue_id": 0, "body": ""}))
    arguments = ("land", "--half", "half.json", "--available-now", "--set", f"storage.root={HERE}/lake")
    run = sandbox(*arguments, HADOOP_CONF_DIR=HERE)
    assert (run.stderr, run.stdout) == ("", "half 1, op 0, rejected 0\n")


#: runs a program whose calls for a hard link fail as on FAT: a seccomp filter, Linux's way to refuse system calls
_NO_LINKS = """
import ctypes, os, struct, sys

calls = {"x86_64": (86, 265), "aarch64": (37,)}[os.uname().machine]
jumps = [(0x15, len(calls) - number, 0, call) for number, call in enumerate(calls)]
program = [(0x20, 0, 0, 0), *jumps, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, whole, 0, 0):
    sys.exit("no seccomp")
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="the numbers of the calls are not known")
def test_folder_without_hard_links(lake: Path) -> None:
    """As on FAT, and some mounts: no commit can be made, and that is said before anything is."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _NO_LINKS, sys.executable, "-m", "checkback", *arguments]
        command += ["--set", f"storage.root={lake}"]
        environ = os.environ | ENVIRON
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)

    told = (
        "the file system has no hard links, by which commits are made; choose a folder on one that has, as ext4, XFS "
        "or NFS\n"
    )
    for arguments in (("reconcile", "--available-now"), ("gateway", "--set", "gateway.port=0")):
        refused = run(*arguments)
        assert (refused.returncode, refused.stderr) == (2, f"checkback: storage.root (--set): {lake}: {told}")
    late = run("tx", "resolve", "t", "--queue-id=0", "--queue-offset=1", "--commit", "--actor=a", "--reason=r", "--yes")
    assert late.stderr.endswith(f"the commit failed: {told}")
