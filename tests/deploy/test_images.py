"""The images, built from the Containerfile, and their processes in pods as the manifests describe them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback import __version__
from deploy.images import REVISION, ROOT, Image, built
from deploy.manifests import FOLDER
from deploy.node import UID, Answer, Node, node
from gateway.process import half, op

if TYPE_CHECKING:
    from deploy.node import Pod

pytestmark = pytest.mark.processes

_GATEWAY, _RECONCILE, _DASHBOARD, _STORE = 8900, 9108, 8902, 9000
_TOKEN = secrets.token_hex(32)


def _volumes(folder: Path) -> None:
    """What the ConfigMap and the Secrets are in a pod."""
    texts = {
        "settings/checkback.yml": (FOLDER / "checkback.yml").read_text("utf-8"),
        "checkback-producers/orders-token": _TOKEN,
        "checkback-producers/orders-secret": "whsec_c2VjcmV0LW9mLXRlc3RzLTMyLWJ5dGVzLWxvbmc=",
        "checkback-dashboard/dashboard-token": _TOKEN,
    }
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    (folder / "journal").mkdir()
    (folder / "journal").chmod(0o2775)
    shutil.chown(folder / "journal", group=0)


@contextmanager
def _object_store(on: Node) -> Iterator[subprocess.Popen[bytes]]:
    command = on.inside([sys.executable, "-m", "examples.s3_server", str(_STORE)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def _check_images(images: Mapping[str, Image]) -> None:
    for image in images.values():
        assert image.config["Entrypoint"] == ["checkback"]
        assert image.config["StopSignal"] == "SIGTERM"
        assert image.config["User"].partition(":")[0].isdecimal(), "runAsNonRoot takes no name"
        labels = {key.rpartition(".")[2]: value for key, value in image.config["Labels"].items()}
        assert labels.items() >= {"version": __version__, "revision": REVISION, "licenses": "Apache-2.0"}.items()
    service, full = images["checkback-service"].root, images["checkback"].root
    for pattern in ("usr/lib/jvm/*/bin/java", "opt/checkback/lib/*/site-packages/pyspark"):
        assert list(full.glob(pattern))
        assert not list(service.glob(pattern))


@pytest.mark.skipif(not os.environ.get("IMAGES"), reason="it builds two images, for minutes and of gigabytes: IMAGES=1")
@pytest.mark.timeout(1500)
def test_pods_of_the_manifests_on_the_images(tmp_path: Path) -> None:
    """One test, since the images take minutes.

    A transaction goes over HTTP through the gateway, `reconcile` and an object store to a consumer; each probe is true
    while the pod can do its work, and false when the journal's disk is full or the store is gone.
    """
    store = {
        "CHECKBACK__STORAGE__ROOT": "s3://lake/checkback",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_STORE}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    for name in ("images", "volumes"):
        (tmp_path / name).mkdir()
    _volumes(tmp_path / "volumes")
    with built(tmp_path / "images") as images, node(images, tmp_path / "volumes", store) as on:
        _check_images(images)
        assert on.run("checkback", "--version") == f"checkback {__version__} (commit {REVISION[:12]})\n"
        with _object_store(on) as server:
            gateway = _acknowledged(on, tmp_path / "volumes/journal")
            reconcile = _published(on)
            dashboard = _shown(on)
            _cared_for(on)
            assert reconcile.terminate() == 0, reconcile.output
            _full_disk(on, gateway)
            server.kill()
            server.wait()
            on.until(dashboard, _DASHBOARD, "/readyz", lambda answer: answer.status == 503)
            assert on.ask(_DASHBOARD, "/healthz").status == 200
            assert dashboard.terminate() == 0, dashboard.output


def _acknowledged(on: Node, journal: Path) -> Pod:
    pod = on.start("checkback-gateway", journal=journal)
    on.until(pod, _GATEWAY, "/readyz", lambda answer: answer.status == 200)
    status = Path(f"/proc/{pod.pid}/status").read_text()
    assert f"Uid:\t{UID}\t{UID}" in status
    assert "CapEff:\t0000000000000000" in status
    sent = on.ask(_GATEWAY, "/v1/half", half("order-1", producer_group="orders", real_topic="payments"), _TOKEN)
    assert sent.status == 200, sent.text
    place = json.loads(sent.text)
    assert place["queue_id"] == 0, "of the pod with index 0"
    ended = op(place["queue_offset"], "order-1", "COMMIT", queue_id=0, producer_group="orders")
    assert on.ask(_GATEWAY, "/v1/op", ended, _TOKEN).status == 200
    return pod


def _published(on: Node) -> Pod:
    pod = on.start("checkback-reconcile")
    on.until(pod, _RECONCILE, "/readyz", lambda answer: answer.status == 200)
    commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert any(b"-XX:SharedArchiveFile=/opt/checkback/share/" in one for one in commands), "layers keep whole seconds"
    on.until(pod, _RECONCILE, "/metrics", _has_published)
    shown = on.run("checkback-service", "topic", "consume", "payments", "--config", "/etc/checkback/checkback.yml")
    assert "order-1" in shown
    return pod


def _has_published(answer: Answer) -> bool:
    return 'checkback_decisions_total{producer_group="orders",state="COMMIT"} 1.0' in answer.text


def _shown(on: Node) -> Pod:
    pod = on.start("checkback-dashboard")
    on.until(pod, _DASHBOARD, "/readyz", lambda answer: answer.status == 200)
    assert on.ask(_DASHBOARD, "/").status in (401, 403)
    return pod


def _cared_for(on: Node) -> None:
    for name in ("checkback-maintain", "checkback-audit"):
        job = on.start(name)
        assert job.end() == 0, job.output


def _full_disk(on: Node, gateway: Pod) -> None:
    """Another gateway, whose volume has too little room, and the first one's end."""
    assert gateway.terminate() == 0, gateway.output
    full = on.start("checkback-gateway", "--take-over", journal="48m")
    answer = on.until(full, _GATEWAY, "/readyz", lambda answer: answer.status == 503)
    assert "full" in answer.text
    assert on.ask(_GATEWAY, "/healthz").status == 200
    full.kill()
