"""The services and the line for cron: well formed, and their command lines are ones that Checkback takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.commands import application, names

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
    begin = next(number for number, word in enumerate(words) if word in names() and number)
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


def test_cron_starts_scheduled_runs() -> None:
    lines = [line for line in CRON.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    settings = [line for line in lines if re.fullmatch(r"[A-Z]+=\S+", line)]
    (job,) = (line for line in lines if line not in settings)
    times = _TIMES.match(job)
    assert times is not None
    user, command = job[times.end() :].split(maxsplit=1)
    assert user == "checkback"
    assert taken(command)["available_now"] is True
    assert "%" not in command, "cron makes it a new line"
    assert CRON.read_bytes().endswith(b"\n"), "cron passes over a last line without its end"


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
