"""The services and the line for cron: well formed, and their command lines are ones that Checkback takes."""

from __future__ import annotations

import fcntl
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.commands import MODULES, application

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
SERVICES = sorted((ROOT / "conf/systemd").glob("*.service"))
CRON = ROOT / "conf/cron/checkback"
DOCS = ROOT / "docs/deploy.md"
#: five times of cron: numbers, ranges, steps and lists
_TIMES = re.compile(r"(?:(?:\*|[0-9]+(?:-[0-9]+)?)(?:/[0-9]+)?(?:,(?=\S))?\s*){5}")


def taken(line: str) -> dict[str, object]:
    """The options of the one `checkback` command in a line of a shell. Raises what Typer raises for a wrong one."""
    words = shlex.split(line, comments=True)
    begin = next(number for number, word in enumerate(words) if word in MODULES and number)
    assert Path(words[begin - 1]).name == "checkback"
    arguments = words[begin:]
    end = next((number for number, word in enumerate(arguments) if word in ("|", "&&") or ">" in word), len(arguments))
    return parse(arguments[:end])


def parse(arguments: Sequence[str]) -> dict[str, object]:
    """The command's options as it takes them; it is not run."""
    command = application().commands[arguments[0]]
    return dict(command.make_context(arguments[0], list(arguments[1:])).params)


def service(file: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(file, "utf-8")
    return parser


def test_gateway_and_reconcile_have_a_service() -> None:
    assert [file.stem for file in SERVICES] == ["checkback-gateway", "checkback-reconcile"]


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_service_runs_on_until_it_is_stopped(file: Path) -> None:
    """Only wrong settings are not tried again; a stop reaches Checkback, and not Spark under it."""
    unit = service(file)
    assert unit.sections() == ["Unit", "Service", "Install"]
    run = unit["Service"]
    options = taken(run["ExecStart"])
    assert f" {file.stem.removeprefix('checkback-')} --config " in run["ExecStart"]
    assert options["config"] == Path("/etc/checkback/checkback.yml")
    assert not options.get("available_now")
    assert (run["Restart"], run["RestartPreventExitStatus"], run["KillMode"]) == ("on-failure", "2", "mixed")


@pytest.mark.processes
@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_service_is_what_systemd_takes(file: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    program = sys.executable
    text = file.read_text("utf-8").replace("/opt/checkback/.venv/bin/checkback", program)
    unit = tmp_path / file.name
    unit.write_text(re.sub(r"(?m)^User=.*$", "", text), "utf-8")
    run = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def _jobs() -> dict[str, str]:
    """The lines of cron without their times and their user, by Checkback's command."""
    lines = [line for line in CRON.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    found = {}
    for line in lines:
        if re.fullmatch(r"[A-Z]+=\S+", line):
            continue
        times = _TIMES.match(line)
        assert times is not None
        user, command = line[times.end() :].split(maxsplit=1)
        assert user == "checkback"
        found[next(word for word in shlex.split(command) if word in MODULES)] = command
    return found


def test_cron_starts_scheduled_runs() -> None:
    jobs = _jobs()
    assert list(jobs) == ["reconcile", "maintain", "audit"]
    assert taken(jobs["reconcile"])["available_now"] is True
    for command in jobs.values():
        assert taken(command)["config"] == Path("/etc/checkback/checkback.yml")
        assert "%" not in command, "cron makes it a new line"
        assert " /tmp/" not in command, "anybody may make a file there first"
    assert CRON.read_bytes().endswith(b"\n"), "cron passes over a last line without its end"


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 1, 2])
@pytest.mark.parametrize("name", ["reconcile", "maintain", "audit"])
def test_line_of_cron_has_the_exit_code_of_its_command(name: str, code: int, tmp_path: Path) -> None:
    """It says what the command says of an error, and nothing if there is none."""
    program = tmp_path / ".venv/bin/checkback"
    program.parent.mkdir(parents=True)
    said = "" if name == "reconcile" and not code else "echo half: 30 files are 1"
    program.write_text(f"#!/bin/sh\n{said}\nexit {code}\n")
    program.chmod(0o755)
    line = _jobs()[name].replace("/opt/checkback", str(tmp_path))
    run = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, check=False, env={"HOME": str(tmp_path)}
    )
    assert run.returncode == code
    assert run.stdout == ("half: 30 files are 1\n" if code else "")


@pytest.mark.processes
def test_run_of_cron_that_takes_longer_is_not_overtaken(tmp_path: Path) -> None:
    with (tmp_path / "reconcile.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = _jobs()["reconcile"].replace("/opt/checkback", str(tmp_path))
        run = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False, env={"HOME": str(tmp_path)})
    assert (run.returncode, run.stdout + run.stderr) == (0, b"")


def test_commands_in_the_docs_are_taken() -> None:
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", DOCS.read_text("utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "checkback " in line]
    commands = [line for line in lines if re.search(r"(^|[/ ])checkback (reconcile|pending|audit|rebuild)", line)]
    assert len(commands) >= 2
    for line in commands:
        assert taken(line)


def test_files_that_the_docs_name_are_there() -> None:
    for path in re.findall(r"`(conf/[\w./-]+)`", DOCS.read_text("utf-8")):
        assert (ROOT / path).exists(), path
