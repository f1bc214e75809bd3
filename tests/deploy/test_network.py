"""The network policies allow the connections that the pods make, and no others, by their selectors and ports.

Nothing enforces them here: a policy is read as Kubernetes' "Network Policies" describes it.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import yaml

from checkback.settings.loading import load
from deploy.manifests import FOLDER, Manifest, container, pods, resources, template, with_component

_POLICIES = [one for one in [*resources(), *resources(FOLDER / "spark")] if one["kind"] == "NetworkPolicy"]
_ANY = 49152


class Peer(NamedTuple):
    """A pod, by its labels and those of its namespace; ``here``: in the namespace of the policies."""

    labels: dict[str, str] = {}  # noqa: RUF012 - never changed
    namespace: dict[str, str] = {}  # noqa: RUF012 - never changed
    ports: dict[str, int] = {}  # noqa: RUF012 - never changed
    here: bool = False


def _of(pod: Manifest) -> Peer:
    ports = {one["name"]: one["containerPort"] for one in container(pod).get("ports", [])}
    return Peer(pod["metadata"]["labels"], {}, ports, here=True)


def _reconcile() -> Manifest:
    (found,) = [one for one in resources() if one["kind"] == "Deployment" and "reconcile" in one["metadata"]["name"]]
    pod = template(with_component("spark", found))
    assert pod is not None
    return pod


_PODS = {name.removeprefix("checkback-"): _of(pod) for name, pod in pods().items()}
_DRIVER = _of(_reconcile())
_EXECUTOR = _of(yaml.safe_load((FOLDER / "spark/executor.yaml").read_text("utf-8")))._replace(ports={"blocks": 7079})
_OUTSIDE = Peer()
_PRODUCER, _PROMETHEUS, _PEOPLE = (
    Peer(namespace={f"checkback/{name}": "true"}) for name in ("producers", "metrics", "people")
)
_ENDPOINT = _PRODUCER._replace(labels={"checkback/endpoint": "true"})


def _fits(selector: Manifest, labels: dict[str, str]) -> bool:
    found: dict[str, str] = selector.get("matchLabels", {})
    return found.items() <= labels.items()


def _is_peer(rule: Manifest, peer: Peer) -> bool:
    if "namespaceSelector" in rule:
        return _fits(rule["namespaceSelector"], peer.namespace) and _fits(rule.get("podSelector", {}), peer.labels)
    return peer.here and _fits(rule["podSelector"], peer.labels)


def _one_way(way: str, of: Peer, other: Peer, port: int, ports: dict[str, int]) -> bool:
    """Whether the policies of one side allow it; ``way``: `ingress` or `egress`."""
    mine = [
        one["spec"]
        for one in _POLICIES
        if of.here and way.title() in one["spec"]["policyTypes"] and _fits(one["spec"]["podSelector"], of.labels)
    ]
    sides = {"ingress": "from", "egress": "to"}
    rules = [rule for spec in mine for rule in spec.get(way, [])]
    return not mine or any(
        any(_is_peer(peer, other) for peer in rule.get(sides[way], [])) or sides[way] not in rule
        for rule in rules
        if "ports" not in rule or port in [ports.get(one["port"], one["port"]) for one in rule["ports"]]
    )


def _allowed(source: Peer, target: Peer, port: int) -> bool:
    out = _one_way("egress", source, target, port, target.ports)
    return out and _one_way("ingress", target, source, port, target.ports)


def test_connections_that_are_made() -> None:
    settings = load(FOLDER / "checkback.yml").settings
    metrics = settings.metrics.port or 0
    for name, pod in {**_PODS, "executor": _EXECUTOR, "driver": _DRIVER}.items():
        assert _allowed(pod, _OUTSIDE, 443), f"{name}: the object store"
        assert _allowed(pod, _OUTSIDE, 53), f"{name}: DNS"
    for source, target, port in (
        (_PRODUCER, _PODS["gateway"], settings.gateway.port),
        (_PROMETHEUS, _PODS["gateway"], settings.gateway.port),
        (_PROMETHEUS, _PODS["reconcile"], metrics),
        (_PEOPLE, _PODS["dashboard"], settings.dashboard.port),
        (_PODS["reconcile"], _ENDPOINT, 8901),
        (_EXECUTOR, _ENDPOINT, 8901),
        (_PROMETHEUS, _DRIVER, metrics),
        (_DRIVER, _OUTSIDE, 6443),
        (_EXECUTOR, _DRIVER, _DRIVER.ports["driver"]),
        (_EXECUTOR, _DRIVER, _DRIVER.ports["blocks"]),
        (_DRIVER, _EXECUTOR, 7079),
        (_EXECUTOR, _EXECUTOR, 7079),
    ):
        assert _allowed(source, target, port), f"{source} -> {target}: {port}"


@pytest.mark.parametrize(
    "target", [*_PODS.values(), _DRIVER, _EXECUTOR], ids=lambda peer: peer.labels["app.kubernetes.io/component"]
)
def test_connections_that_nobody_makes(target: Peer) -> None:
    for port in (*target.ports.values(), _ANY):
        assert not _allowed(_OUTSIDE, target, port)
    assert not _allowed(_PRODUCER, _PODS["dashboard"], 8902)
    assert not _allowed(_PEOPLE, _PODS["gateway"], 8900)
    assert not _allowed(target, _OUTSIDE, _ANY)
