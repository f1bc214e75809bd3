"""Java is looked for before Spark starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from checkback.errors import SettingsError
from checkback.spark.jvm import java_check, names_locale


def java(folder: Path, says: str, code: int = 0) -> str:
    """A JAVA_HOME whose java says a version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.processes
@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'java version "21" 2023-09-19',
        'openjdk version "25-ea" 2025-09-16',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1" 2021-10-19',
    ],
)
def test_java_of_17_or_later_is_taken_from_home_or_path(tmp_path: Path, says: str) -> None:
    home = java(tmp_path / "jdk", says)
    assert java_check({"JAVA_HOME": home, "PATH": ""}) == f"{home}/bin/java"
    assert java_check({"PATH": f"{home}/bin:/bin"}) == f"{home}/bin/java"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("says", "told"),
    [
        ('java version "1.8.0_392"', "Java 8 is too old"),
        ('openjdk version "11.0.2" 2019-01-15', "Java 11 is too old"),
        ("Unable to locate a Java Runtime.", "Java does not say its version"),
    ],
)
def test_other_java_is_refused(tmp_path: Path, says: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        java_check({"JAVA_HOME": java(tmp_path, says), "PATH": "/bin"})
    assert told in str(caught.value)
    assert "install Java 17 or 21" in str(caught.value)


def test_no_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Java is not installed; install Java 17 or 21"):
        java_check({"PATH": str(tmp_path)})
    with pytest.raises(SettingsError, match="JAVA_HOME has no bin/java; install Java 17 or 21"):
        java_check({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environ", "python", "added"),
    [
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "utf-8", True),
        ({}, "utf-8", True),
        ({"LC_ALL": "", "LANG": "POSIX"}, "utf-8", True),
        ({"LANG": "de_DE.utf8"}, "utf-8", False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, "utf-8", False),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso8859-1", False),
    ],
)
def test_jvm_reads_names_as_python_does(environ: dict[str, str], python: str, added: bool) -> None:
    more = names_locale(environ, python)
    assert bool(more) == added
    if added:
        command = [java_check(), "-XshowSettings:properties", "-version"]
        run = subprocess.run(command, env=environ | more, capture_output=True, text=True, check=True)
        assert "sun.jnu.encoding = UTF-8\n" in run.stderr
