"""Spark on Kubernetes: it asks a server of the API for pods, and a kubelet starts them on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from checkback.settings import Settings
from checkback.spark import jars
from checkback.spark.jvm import prepare
from checkback.spark.session import spark_settings
from cluster.lake import ENVIRON, Lake, answers
from crash.process import PATIENCE_S
from deploy import kubelet
from deploy.api_server import NAMESPACE, Server, api_server
from deploy.manifests import FOLDER, container, resources, with_component
from docs.blocks import blocks
from docs.shell import Call
from examples.producer import ExampleProducer
from support.jvm import SHORT_LIVED
from support.s3_server import BUCKET, options, s3_server
from support.standalone_cluster import ROOT, Submitted, conf, environ, kill_session, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.processes]

_SPARK = FOLDER / "spark"
_JARS = "/opt/checkback/share/checkback/ivy/jars/*"
_IMAGE = "registry.example/checkback:0.1.0"
_HERE = {
    "spark.kubernetes.container.image": _IMAGE,
    "spark.executor.memory": "640m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.driver.extraJavaOptions": SHORT_LIVED,
}


def _jars() -> str:
    """The JARs that an image has in `_JARS`."""
    conf = spark_settings(Settings.model_validate({"storage": {"root": "s3://bucket"}}))
    prepare(conf)
    return ":".join(map(str, [jars.on_class_path(conf)[jars.CLASS_PATH], *jars.at_end(conf, {}).values()]))


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for place, here in places.items():
        text = text.replace(place, here)
    return text


class Process:
    """A pod as a process of this machine: what is in the image is in this installation."""

    def __init__(self, pod: kubelet.Object, address: str, places: Mapping[str, str], log: Path) -> None:
        found = pod["spec"]["containers"][0]
        variables = kubelet.environ(pod, address)
        command = [*found.get("command", ["checkback"]), *found.get("args", [])]
        for name, value in variables.items():
            command = [part.replace(f"$({name})", value) for part in command]
        texts = "\0".join([*command, *(f"{name}={value}" for name, value in variables.items())])
        parts = _replaced(texts, places).split("\0")
        given = dict(part.split("=", 1) for part in parts[len(command) :])
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                parts[: len(command)],
                stdout=out,
                stderr=out,
                env={**environ(), **ENVIRON, **paths, **given},
                start_new_session=True,
                cwd=log.parent,
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> int:
        """Its exit code."""
        code = self._process.wait()
        self.kill()
        return code

    def terminate(self) -> None:
        """As a kubelet ends it."""
        self._process.terminate()

    def kill(self) -> None:
        """All its processes."""
        kill_session(self._process)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Tables in an object store, and the first transactions."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with s3_server() as port, ExampleProducer(answers()) as producer:
        lake = Lake(f"s3://{BUCKET}/pods", producer.endpoints, options(port), options(port))
        lake.land()
        yield lake


class Node:
    """Where the pods run, and what each has printed."""

    def __init__(self, url: str, server: Server, folder: Path) -> None:
        self._url, self._server, self._folder = url, server, folder
        self.started: dict[str, Process] = {}

    def start(self, pod: kubelet.Object, address: str) -> Process:
        """Start it."""
        name = pod["metadata"]["name"]
        places = {
            "https://kubernetes.default.svc": self._url,
            "/etc/spark": str(_SPARK),
            "/etc/checkback/checkback.yml": f"{ROOT}/conf/base.yml",
            "/opt/checkback/jobs": f"{ROOT}/jobs",
            "/var/data": str(self._folder),
            **self._configured(pod, address),
        }
        self.started[name] = Process(pod, address, places, self._folder / f"{name}.log")
        return self.started[name]

    def _configured(self, pod: kubelet.Object, address: str) -> dict[str, str]:
        """By their folder in the pod its ConfigMaps that Spark makes, after the pod, and a Service with them."""
        given = {volume["name"]: volume.get("configMap", {}) for volume in pod["spec"]["volumes"]}
        of_spark = {one["name"] for one in given.values() if "items" in one}
        wait_for(lambda: not of_spark or (of_spark <= self._maps().keys() and bool(self._services())), self.said)
        maps = {one["mountPath"]: given[one["name"]] for one in container(pod)["volumeMounts"]}
        found = {path: str(self._folder / one["name"]) for path, one in maps.items() if "items" in one}
        instead = {**dict.fromkeys(self._services(), address), **found, _JARS: _jars()}  # there is no DNS
        for path, folder in found.items():
            Path(folder).mkdir()
            for item in maps[path]["items"]:
                text = self._maps()[maps[path]["name"]][item["key"]]
                Path(folder, item["path"]).write_text(_replaced(text, instead))
        return found

    def _maps(self) -> dict[str, dict[str, str]]:
        return {one["metadata"]["name"]: one["data"] for one in self._server.objects("configmaps")}

    def _services(self) -> list[str]:
        return [f"{one['metadata']['name']}.{NAMESPACE}.svc" for one in self._server.objects("services")]

    def said(self) -> str:
        """What the pods have printed."""
        return "\n".join(f"{name}: {one.log.read_text(errors='replace')}" for name, one in self.started.items())

    def executors(self) -> list[str]:
        """Their names."""
        return [name for name in self.started if "-exec-" in name]


@pytest.fixture
def server() -> Iterator[tuple[str, Server]]:
    with api_server() as both:
        yield both
        assert not both[1].invalid


@pytest.fixture
def node(server: tuple[str, Server], tmp_path: Path) -> Iterator[Node]:
    node = Node(*server, tmp_path)
    with kubelet.kubelet(server[0], node.start):
        yield node


def _restricted(pod: kubelet.Object) -> None:
    """As the Pod Security Standard `restricted` wants it, with a root that is not written."""
    found = container(pod)
    assert pod["spec"]["securityContext"].items() >= {"runAsNonRoot": True}.items()
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["image"] == _IMAGE


def test_deployment_with_the_component_is_a_driver(lake: Lake, server: tuple[str, Server], node: Node) -> None:
    """An executor that dies is replaced; the driver's end is that of its executors."""
    workloads = {one["metadata"]["name"]: one for one in resources() if one["kind"] == "Deployment"}
    pod = with_component("spark", workloads["checkback-reconcile"])["spec"]["template"]
    found = pod["spec"]["containers"][0]
    found["image"] = _IMAGE
    found["args"] += [*lake.overrides(lake.options), *(f"--set=spark.{name}={value}" for name, value in _HERE.items())]
    named = {**pod["metadata"], "name": "driver"}
    server[1].make("pods", {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": named})
    wait_for(lake.done, node.said)
    first = node.executors()
    assert len(first) == 2
    node.started[first[0]].kill()
    lake.land()
    wait_for(lake.done, node.said)
    wait_for(lambda: len(node.executors()) == 3, node.said)
    node.started["driver"].terminate()
    wait_for(lambda: not node.started["driver"].runs, node.said)
    assert node.started["driver"].end() == 0, node.said()
    for one in server[1].made:
        _restricted(one)
    _assert_once(lake)


def _assert_once(lake: Lake) -> None:
    published = lake.published()
    assert (set(published), set(published.values())) == (set(range(lake.landed)), {1})
    assert lake.audit() == 0


def test_spark_submit_makes_the_driver_too(lake: Lake, server: tuple[str, Server], node: Node, tmp_path: Path) -> None:
    """The command that docs/kubernetes.md prints, with `--available-now`: the driver ends with 0."""
    call = next(
        Call.of(line)
        for block in blocks("sh")
        if block.page == "docs/kubernetes.md"
        for line in block.lines()
        if line.startswith("spark-submit --master k8s://")
    )
    printed = {"https://kubernetes.example:6443": server[0], "namespace=checkback": f"namespace={NAMESPACE}"}
    arguments = [_replaced(word, printed) for word in call.arguments]
    here = {**_HERE, "spark.kubernetes.driver.master": server[0]}
    with Submitted(tmp_path / "log", [*conf(here), *arguments, *lake.overrides(lake.options)], ENVIRON) as submitted:
        assert submitted.process.wait(2 * PATIENCE_S) == 0, submitted.said() + node.said()
    driver = next(name for name in node.started if "-exec-" not in name)
    assert node.started[driver].end() == 0, node.said()
    assert len(node.executors()) == 2
    assert {one["kind"] for one in server[1].made} == {"ConfigMap", "NetworkPolicy", "Pod", "Service"}
    for one in server[1].made:
        if one["kind"] == "Pod":
            _restricted(one)
    _assert_once(lake)
