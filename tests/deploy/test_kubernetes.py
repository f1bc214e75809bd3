"""The manifests of conf/kubernetes: valid by Kubernetes' schemas, whole, and what they name is there in Checkback."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from checkback.commands import application
from checkback.settings.loading import load
from checkback.settings.model import BASE_FILE
from deploy.manifests import (
    CONTAINERFILE,
    FOLDER,
    Manifest,
    container,
    environ,
    kustomization,
    pods,
    resources,
    with_component,
    with_patch,
)
from docs.blocks import pages as pages_of_docs
from docs.shell import Call, check_checkback

#: as `kustomize build` names it, without the hash
_SETTINGS, _SETTINGS_AT = "checkback", "/etc/checkback"

_ALL = resources()


def _names(resources: list[Manifest]) -> list[str]:
    return [f"{one['kind']}/{one['metadata']['name']}" for one in resources]


_PODS = {**pods(), **pods(FOLDER / "backup")}


def _selects(selector: dict[str, str], template: Manifest) -> bool:
    labels: dict[str, str] = template["metadata"]["labels"]
    return selector.items() <= labels.items()


def _options(name: str) -> dict[str, Any]:
    """The options of a pod's command as it takes them; the command is not run."""
    first, *others = container(_PODS[name])["args"]
    return dict(application().commands[first].make_context(first, others).params)


def _reconcile() -> Manifest:
    (found,) = [one for one in _ALL if one["kind"] == "Deployment" and one["metadata"]["name"] == "checkback-reconcile"]
    return found


_OF_COMPONENTS = [
    *resources(FOLDER / "backup"),
    *resources(FOLDER / "spark"),
    *(with_component(name, _reconcile()) for name in ("spark", "standby")),
]


@pytest.mark.parametrize("resource", [*_ALL, *_OF_COMPONENTS], ids=_names([*_ALL, *_OF_COMPONENTS]))
def test_manifest_is_valid_by_the_schemas_of_kubernetes(resource: Manifest) -> None:
    kubernetes_validate.validate(resource, "1.37", strict=True)


def test_every_file_is_named() -> None:
    """But for `driver.yaml`, which spark-submit is given."""
    for folder in (FOLDER, *(FOLDER / name for name in ("backup", "monitoring", "spark"))):
        found = kustomization(folder)
        generated = {name for one in found.get("configMapGenerator", []) for name in one["files"]}
        files = {file.name for file in folder.iterdir() if file.is_file()} - {"driver.yaml"}
        assert files == {"kustomization.yaml", *found["resources"], *generated}
    (generated,) = kustomization(FOLDER)["configMapGenerator"]
    assert generated == {"name": _SETTINGS, "files": ["checkback.yml"]}


def test_images_are_those_of_the_containerfile() -> None:
    text = CONTAINERFILE.read_text("utf-8")
    version = re.findall(r'image\.version="(.+)"', text)
    images = {one["name"]: one["newTag"] for one in kustomization(FOLDER)["images"]}
    assert kustomization(FOLDER / "backup")["images"] == [{"name": "checkback-service", "newTag": version[0]}]
    assert [*images.values()] == version * len(images)
    assert {container(template)["image"] for template in _PODS.values()} == images.keys()
    needs_spark = {name for name, template in _PODS.items() if container(template)["image"] == "checkback"}
    assert needs_spark == {"checkback-reconcile", "checkback-command"}


@pytest.mark.parametrize("name", _PODS)
def test_pod_is_restricted(name: str) -> None:
    """As the Pod Security Standard `restricted` wants it, and with a root that is not written."""
    spec, found = _PODS[name]["spec"], container(_PODS[name])
    assert spec["automountServiceAccountToken"] is False
    assert (
        spec["securityContext"].items() >= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}.items()
    )
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["resources"]["limits"]["memory"]
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "10Gi"}} in spec["volumes"]
    mounted = {one["name"] for one in found["volumeMounts"]}
    claimed = {"journal"} if name == "checkback-gateway" else set()
    assert mounted == {one["name"] for one in spec["volumes"]} | claimed


@pytest.mark.parametrize("name", _PODS)
def test_command_is_one_of_checkback(name: str) -> None:
    if name == "checkback-backup":  # a shell's, for the date
        assert " checkback backup " in container(_PODS[name])["args"][0]
    elif name != "checkback-command":
        assert _options(name)["config"] == Path(_SETTINGS_AT, "checkback.yml")
    mounts = {one["name"]: one["mountPath"] for one in container(_PODS[name])["volumeMounts"]}
    assert mounts["settings"] == _SETTINGS_AT or name == "checkback-command"
    assert mounts["tmp"] == "/tmp"  # noqa: S108 - the pod's own


def test_command_has_what_reconcile_has_and_waits() -> None:
    """Its settings are where each command reads them without being told."""
    pod, reconcile = _PODS["checkback-command"], _PODS["checkback-reconcile"]
    mine, other = container(pod), container(reconcile)
    assert mine["command"][0] == "sleep"
    for name in ("image", "envFrom"):
        assert mine[name] == other[name]
    assert mine["resources"]["limits"] == other["resources"]["limits"]
    mounts = {one["name"]: one["mountPath"] for one in mine["volumeMounts"]}
    assert mounts["secrets"] == "/run/secrets/checkback"
    volumes, of_reconcile = ({one["name"]: one for one in spec["spec"]["volumes"]} for spec in (pod, reconcile))
    (item,) = volumes["settings"]["configMap"].pop("items")
    assert volumes == of_reconcile
    assert item["key"] == "checkback.yml"
    assert Path(mounts["settings"], item["path"]) == Path(mine["workingDir"], BASE_FILE)
    (job,) = [one for one in _of_kind("CronJob") if one["metadata"]["name"] == "checkback-command"]
    assert job["spec"]["suspend"] is True


_PAGE = [
    line
    for page in pages_of_docs()
    for block in page.blocks
    if page.name == "docs/kubernetes.md" and block.language == "sh"
    for line in block.lines()
    if line.startswith("kubectl")
]


def test_lines_of_kubectl_name_what_there_is() -> None:
    """Workloads of the manifests, a Job by the name that the page gives it, and commands of Checkback."""
    kinds = {"Deployment": "deploy", "StatefulSet": "statefulset", "CronJob": "cronjob"}
    there = {f"{kinds[one['kind']]}/{one['metadata']['name']}" for one in _of_kind(*kinds)} | {"job/fix"}
    named = {found for line in _PAGE for found in re.findall(r"\b(?:job|cronjob|deploy|statefulset)/[\w-]+", line)}
    assert named <= there
    assert {"job/fix", "cronjob/checkback-command"} <= named
    commands = [line.partition(" -- ")[2] for line in _PAGE if " exec " in line]
    assert {check_checkback(Call.of(command))[0] for command in commands} >= {"restore", "rebuild"}


def test_gateway_is_told_to_take_over() -> None:
    (line,) = [one for one in _PAGE if "--take-over" in one]
    words = shlex.split(line)
    gateway = with_patch(_of_kind("StatefulSet")[0], words[words.index("-p") + 1])
    first, *others = container(gateway["spec"]["template"])["args"]
    assert application().commands[first].make_context(first, others).params["take_over"] is True


def test_settings_are_those_of_checkback_and_fit_the_pods() -> None:
    settings = load(FOLDER / "checkback.yml", environ=environ(_PODS["checkback-gateway"], 3)).settings
    assert settings.gateway.queues == [3]
    gateway = container(_PODS["checkback-gateway"])
    (journal,) = [one["mountPath"] for one in gateway["volumeMounts"] if one["name"] == "journal"]
    assert Path(settings.gateway.journal).parent == Path(journal)
    ports = {
        "checkback-gateway": ("http", settings.gateway.port, settings.gateway.host),
        "checkback-reconcile": ("metrics", settings.metrics.port, settings.metrics.host),
        "checkback-dashboard": ("http", settings.dashboard.port, settings.dashboard.host),
    }
    for name, (port, number, host) in ports.items():
        assert container(_PODS[name])["ports"] == [{"name": port, "containerPort": number}]
        assert host == "0.0.0.0"
    for secret in (settings.dashboard.token, settings.producers["orders"].token, settings.producers["orders"].secret):
        assert secret is not None
        assert secret.get_secret_value().startswith("file:/run/secrets/checkback/")


@pytest.mark.parametrize("name", ["checkback-gateway", "checkback-reconcile", "checkback-dashboard"])
def test_probes_are_what_checkback_answers(name: str) -> None:
    found = container(_PODS[name])
    (port,) = found["ports"]
    probes = {kind: one["httpGet"] for kind, one in found.items() if kind.endswith("Probe")}
    assert probes["livenessProbe"] == {"path": "/healthz", "port": port["name"]}
    assert probes["readinessProbe"] == {"path": "/readyz", "port": port["name"]}
    assert probes.get("startupProbe", probes["livenessProbe"]) == probes["livenessProbe"]


def _of_kind(*kinds: str) -> list[Manifest]:
    return [one for one in _ALL if one["kind"] in kinds]


def test_services_policies_and_budgets_select_pods_and_their_ports() -> None:
    for service in _of_kind("Service"):
        (template,) = [one for one in _PODS.values() if _selects(service["spec"]["selector"], one)]
        ports = {one["name"]: one["containerPort"] for one in container(template)["ports"]}
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    for other in _of_kind("PodDisruptionBudget", "NetworkPolicy"):
        selector = (other["spec"].get("selector") or other["spec"]["podSelector"])["matchLabels"]
        selected = [one for one in _PODS.values() if _selects(selector, one)]
        assert selected
        named = {one["name"] for template in selected for one in container(template).get("ports", [])}
        for rule in other["spec"].get("ingress", []):
            assert {one["port"] for one in rule["ports"]} <= named
    whole = [one for one in _of_kind("NetworkPolicy") if one["metadata"]["name"] == "checkback"]
    assert all(_selects(one["spec"]["podSelector"]["matchLabels"], pod) for one in whole for pod in _PODS.values())


def test_stateful_set_has_its_headless_service() -> None:
    (gateway,) = _of_kind("StatefulSet")
    (service,) = [one for one in _of_kind("Service") if one["metadata"]["name"] == gateway["spec"]["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"


def test_one_reconcile_ends_before_the_next_begins() -> None:
    reconcile = _reconcile()
    assert (reconcile["spec"]["replicas"], reconcile["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_component_makes_the_second_one_stand_by() -> None:
    changed = with_component("standby", _reconcile())
    assert (changed["spec"]["replicas"], changed["spec"]["strategy"]["type"]) == (2, "RollingUpdate")
    first, *others = container(changed["spec"]["template"])["args"]
    assert application().commands[first].make_context(first, others).params["standby"] is True


def test_component_runs_reconcile_as_a_driver() -> None:
    """With settings that it takes, in front of those of the user's file; ports are those of its policy and of Spark."""
    pod = with_component("spark", _reconcile())["spec"]["template"]
    assert pod["spec"]["automountServiceAccountToken"] is True
    names = {f"{one['kind']}/{one['metadata']['name']}" for one in resources(FOLDER / "spark")}
    assert f"ServiceAccount/{pod['spec']['serviceAccountName']}" in names
    first, *others = container(pod)["args"]
    overrides = application().commands[first].make_context(first, others).params["overrides"]
    spark = load(FOLDER / "checkback.yml", overrides).settings.spark
    assert spark["spark.master"].startswith("k8s://")
    conf = dict(line.split() for line in _lines("spark.conf"))
    ports = {one["name"]: str(one["containerPort"]) for one in container(pod)["ports"]}
    assert conf["spark.driver.port"] == ports["driver"]
    assert conf["spark.driver.blockManager.port"] == conf["spark.blockManager.port"] == ports["blocks"]
    (mount,) = [one["mountPath"] for one in container(pod)["volumeMounts"] if one["name"] == "spark"]
    (generated,) = kustomization(FOLDER / "spark")["configMapGenerator"]
    assert Path(spark["spark.kubernetes.executor.podTemplateFile"]).relative_to(mount).name in generated["files"]
    (given,) = [one["value"] for one in container(pod)["env"] if one["name"] == "PYSPARK_SUBMIT_ARGS"]
    assert f"--properties-file {mount}/spark.conf " in given


def _lines(name: str) -> list[str]:
    lines = (FOLDER / "spark" / name).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_scheduled_runs_do_not_overlap() -> None:
    every = [*_of_kind("CronJob"), *resources(FOLDER / "backup")]
    jobs = {one["metadata"]["name"]: one["spec"] for one in every}
    assert jobs.keys() == {"checkback-maintain", "checkback-audit", "checkback-backup", "checkback-command"}
    assert {one["concurrencyPolicy"] for one in jobs.values() if not one.get("suspend")} == {"Forbid"}


def test_prometheus_finds_the_services_with_metrics() -> None:
    (monitor,) = resources(FOLDER / "monitoring")
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    assert expression["operator"] == "In"
    scraped = {
        (service["metadata"]["labels"][expression["key"]], port["name"])
        for service in _of_kind("Service")
        if service["metadata"].get("labels", {}).get(expression["key"]) in expression["values"]
        for port in service["spec"]["ports"]
    }
    assert scraped == {("gateway", "http"), ("reconcile", "metrics")}
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == ["http", "metrics"]
