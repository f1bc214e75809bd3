"""Lines of the pages' shell blocks: what they call, and whether the real thing would take it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from datetime import datetime, time, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyspark

from checkback.commands import application
from checkback.settings.loading import load
from checkback.spark.hadoop_settings import packages_for
from checkback.spark.jars import DELTA_PACKAGE
from checkback.spark.session import kafka_package
from docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What variables hold that the pages name: it serves as a secret and as a token.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NAMED = dict.fromkeys(
    (
        *("ORDERS_SECRET", "ORDERS_TOKEN", "KAFKA_JAAS", "LAKE_KEY_ID", "LAKE_KEY", "DASHBOARD_TOKEN"),
        *("CREDITS_SECRET", "REGISTRY_PASSWORD"),
    ),
    SECRET,
)
#: Programs of the system: only the files of the project that they name are looked for.
SYSTEM = {"export", "install", "openssl", "source", "systemctl", "useradd"}
ZIP, PYTHON_RUNNER = "dist/checkback.zip", "org.apache.spark.deploy.PythonRunner"
_ASSIGNED = re.compile(r"(\w+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A line: the variables set before it, the program without its folder, its arguments."""

    environ: Mapping[str, str]
    program: str
    arguments: list[str]

    @classmethod
    def of(cls, line: str) -> Call:
        """The call that a line of shell makes."""
        words, environ = shlex.split(line), {}
        while words and (match := _ASSIGNED.fullmatch(words[0])):
            environ[match[1]] = match[2]
            words = words[1:]
        return cls(environ, words[0].rpartition("/")[2], words[1:])


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command of Checkback's arguments and the parameters that it would run with.

    Read late in the day, so that a time of day on a page is none to come. Raises Typer's error where the command line
    would.
    """
    evening = datetime.combine(datetime.now(timezone.utc), time.max, timezone.utc)
    command: Any = application()
    names: list[str] = []
    rest = arguments
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            raise AssertionError(f"there is no command {' '.join([*names, *rest[:1]])}")
        names.append(rest[0])
        command, rest = command.commands[rest[0]], rest[1:]
    now = patch("checkback.query.versions.as_of._now", return_value=evening)
    with now, patch.dict(os.environ, USER="alice"):
        return " ".join(names), command.make_context(" ".join(names), list(rest)).params


def check_checkback(call: Call) -> tuple[str, dict[str, Any]]:
    """As ``parse``; its settings must be such, too. A file of settings that the reader has is left out."""
    if call.arguments == ["--help"]:
        return "", {}
    name, parameters = parse(call.arguments)
    config = parameters["config"]
    there = config if config is not None and (ROOT / config).exists() else None
    load(there and ROOT / there, parameters["overrides"] or (), {**NAMED, **call.environ})
    return name, parameters


def check_make(call: Call) -> None:
    """The target is there, and its variables are."""
    for word in call.arguments:
        variable = word.partition("=")[0]
        text = makefile()
        assert re.search(rf"^{re.escape(variable)}( \?=|:)", text, re.MULTILINE), f"make knows no {variable}"
    subprocess.run(["make", "-n", *call.arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)  # noqa: S607


@cache
def makefile() -> str:
    """The Makefile's text."""
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def check_python(call: Call) -> None:
    """The module that is run is one of the project's."""
    assert call.arguments[0] == "-m", "run a module"
    path = call.arguments[1].replace(".", "/")
    assert any(
        (ROOT / folder / path).is_dir() or (ROOT / folder / f"{path}.py").is_file() for folder in ("lib", "tests")
    )


def check_submit(call: Call) -> None:
    """spark-submit: the package is the one that is installed, the job is there and takes its options."""
    words = iter(word.removeprefix("local://").replace("/opt/checkback/", "") for word in call.arguments)
    in_image = any(word.startswith("local://") for word in call.arguments)
    by_class = False
    for word in words:
        if word == "--packages":
            check_packages(next(words))
        elif word in ("--py-files", "--files"):
            assert next(words) == ZIP
        elif word == "--properties-file":
            assert (ROOT / next(words)).is_file()
        elif word in ("--master", "--deploy-mode", "--name", "--conf", "--class"):
            by_class |= next(words) == PYTHON_RUNNER
        elif word != "--supervise":
            break
    if by_class:  # in cluster mode a standalone master takes no Python file, but this class that runs one
        assert (Path(pyspark.__file__).parent / word.removeprefix("/opt/spark/")).is_file(), word
        word = next(words)
        assert next(words) == ZIP
    assert (ROOT / word).is_file(), word
    if (
        word not in call.arguments and not in_image
    ):  # not in the project's folder, where its Python is the first on PATH
        assert "spark.pyspark.python=/opt/checkback/.venv/bin/python" in call.arguments, (
            "another Python has no packages"
        )
    options = list(words)
    if options != ["--help"]:
        parse([*command_of(ROOT / word).split(), *options])


def command_of(job: Path) -> str:
    """The command that a job runs."""
    match = re.search(r'run\("(.+)"\)', job.read_text(encoding="utf-8"))
    assert match is not None, job
    return match[1]


def check_packages(packages: str) -> None:
    """They are of the versions that are installed."""
    assert set(packages.split(",")) <= {DELTA_PACKAGE, kafka_package(), *packages_for("s3://bucket")}


def check_system(call: Call) -> None:
    """The project's files that it names are there."""
    for word in call.arguments:
        if word.startswith(("conf/", "jobs/", "lib/", "tests/")):
            assert (ROOT / word).exists(), word
