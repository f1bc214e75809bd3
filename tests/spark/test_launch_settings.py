"""Secrets among Spark's settings are on no command line, and take effect."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from checkback.spark.jvm import java_check
from checkback.spark.launch_settings import ARGUMENTS, launch_settings, split_options
from support.jvm import SHORT_LIVED


def test_settings_that_config_show_masks_are_in_a_file_of_the_owner() -> None:
    conf = {"spark.driver.memory": "1g", "spark.hadoop.fs.s3a.secret.key": "x", "spark.a.url": "https://u:p@h"}
    with launch_settings(conf, {}) as (shown, arguments):
        assert shown == {"spark.driver.memory": "1g"}
        *_, file, last = arguments.split()
        assert last == "pyspark-shell"
        assert Path(file).is_file()
        assert os.stat(Path(file).parent).st_mode & 0o077 == 0
    assert not Path(file).parent.exists()
    with launch_settings(conf, {ARGUMENTS: "--verbose pyspark-shell"}) as (_, arguments):
        assert arguments.endswith(" --verbose pyspark-shell")


@pytest.mark.parametrize(
    ("options", "kept", "hidden"),
    [
        ("", [], []),
        (f"{SHORT_LIVED} -Xlog:cds=off", [*SHORT_LIVED.split(), "-Xlog:cds=off"], []),
        ("-Da=b  -Xmx1g\n-javaagent:x=y", ["-Xmx1g"], ["-Da=b", "-javaagent:x=y"]),
        ("@/etc/options '-XX:OnError=kill %p'", ["@/etc/options", "'-XX:OnError=kill %p'"], []),
        (r"""-Da='b "c\d' -De="f \"g' \h" -Di=j\ k""", [], ["""-Da=b "c\\d""", """-De=f "g' h""", "-Di=j k"]),
        ("""-Da="b c""", ["""-Da="b c"""], []),
    ],
)
def test_options_of_the_jvm_that_may_hold_secrets(options: str, kept: list[str], hidden: list[str]) -> None:
    assert split_options(options) == (kept, hidden)


#: notes the command line of the process that starts Java, and Java's
_JAVA = """\
#!/bin/sh
{ cat /proc/$PPID/cmdline; printf ' %s\\n' "$@"; } >> "$NOTED"
exec "$JAVA" "$@"
"""
_LOOK = """
import json, os, pathlib, sys
from checkback.settings import Settings
from checkback.spark.session import open_session

own, secret = json.loads(os.environ["OWN"]), os.environ["SECRET"].encode()
spark = open_session(Settings.model_validate({"spark": own}), short=True)
lines = []
for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(file.read_bytes())
    except OSError:
        pass  # it has just ended
of_jvm = spark.sparkContext._jvm.java.lang.System.getProperty
found = {
    "lines": [str(line) for line in lines if secret in line],
    "hadoop": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    "url": of_jvm("spark.own.url"),
    "option": of_jvm("own.option"),
}
spark.stop()
later = own | {"spark.hadoop.fs.s3a.secret.key": "later"}
spark = open_session(Settings.model_validate({"spark": later}), short=True)
found["later"] = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the command lines of processes are not in /proc")
def test_no_process_of_a_session_has_a_secret_on_its_command_line(tmp_path: Path) -> None:
    """Nor one that Spark's scripts start for a moment; and the JVM has the values from its start on, as they are."""
    secret, noted, files = f"s-{uuid.uuid4().hex}", tmp_path / "noted", tmp_path / "files"
    url, option = f"https://u:{secret} é\\n=:#'\"\n!@host/?a=$b", f"""{secret} é\\"' #"""
    own = {
        "spark.hadoop.fs.s3a.secret.key": secret,
        "spark.own.url": url,
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} {shlex.quote(f'-Down.option={option}')}",
    }
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA)
    java.chmod(0o755)
    files.mkdir()
    environ = {
        "JAVA": os.path.realpath(java_check()),
        "JAVA_HOME": str(tmp_path / "jdk"),
        "NOTED": str(noted),
        "OWN": json.dumps(own),
        "SECRET": secret,
        "TMPDIR": str(files),
    }
    run = subprocess.run(
        [sys.executable, "-c", _LOOK], env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found == {"lines": [], "hadoop": secret, "url": url, "option": option, "later": "later"}
    commands = noted.read_text()
    assert all(name in commands for name in ("bin/spark-class", "spark.launcher.Main", "deploy.SparkSubmit"))
    assert secret not in commands
    assert not list(files.glob("checkback-*"))
