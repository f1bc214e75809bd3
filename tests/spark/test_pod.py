"""What a pod that Spark has made runs; that it works is in tests/deploy/test_spark.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.spark import jars, pod

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_executors_have_the_drivers_class_path_in_front_of_the_users() -> None:
    conf = {jars.CLASS_PATH: "/one.jar:/two.jar", "spark.executor.extraClassPath": "/own.jar"}
    assert jars.of_executors(conf, {"SPARK_DIST_CLASSPATH": "/s3.jar"}) == {
        "spark.executor.extraClassPath": "/one.jar:/two.jar:/own.jar",
        "spark.executorEnv.SPARK_DIST_CLASSPATH": "/s3.jar",
    }


def test_executor_gets_its_options_in_their_order() -> None:
    given = {name: name.lower() for name in pod._ARGUMENTS.values()}
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    paths = {"SPARK_CLASSPATH": "/one.jar", "SPARK_DIST_CLASSPATH": "/s3.jar"}
    command = pod.executor({**given, **options, **paths, "SPARK_EXECUTOR_MEMORY": "1g"}, "/usr/bin/java")
    assert command[:6] == ["/usr/bin/java", *(f"-Dnumber={number}" for number in (0, 2, 10)), "-Xms1g", "-Xmx1g"]
    assert command[command.index("-cp") + 1] == f"/one.jar:{jars.of_spark()}/*:/s3.jar"
    assert command[command.index("--driver-url") + 1] == "spark_driver_url"


def test_user_without_a_name_is_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod, "nameless_user", lambda: None)
    assert pod.named_user(tmp_path) == {}
    monkeypatch.setattr(pod, "nameless_user", lambda: 1_000_650_000)
    file = pod.named_user(tmp_path)["NSS_WRAPPER_PASSWD"]
    assert ":1000650000:" in (tmp_path / "passwd").read_text()
    assert file == str(tmp_path / "passwd")
