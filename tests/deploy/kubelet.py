"""Starts the pods that appear at a server of Kubernetes' API, and reports there what becomes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import requests

from deploy.api_server import NAMESPACE

Object = dict[str, Any]


class Started(Protocol):
    """A pod's process."""

    def end(self) -> int:
        """Wait for its end; the exit code."""

    def kill(self) -> None:
        """End it at once."""


def environ(pod: Object, address: str) -> dict[str, str]:
    """What the container's variables are in a pod with this address."""
    fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"], "metadata.namespace": NAMESPACE}
    found = {}
    for one in pod["spec"]["containers"][0].get("env", []):
        place = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[one["name"]] = fields[place] if place else one.get("value", "")
    return found


class Kubelet:
    """``start``: what a pod with this address is; one that has ended is not started again."""

    def __init__(self, url: str, start: Callable[[Object, str], Started]) -> None:
        self._pods, self._start = f"{url}/api/v1/namespaces/{NAMESPACE}/pods", start
        self.running: dict[str, Started] = {}
        self._threads: list[threading.Thread] = []
        self._number = 1

    def watch(self) -> None:
        """Until the server ends."""
        with requests.get(self._pods, {"watch": "true"}, stream=True, timeout=(9, None)) as events:
            for line in events.iter_lines(chunk_size=1):
                event = json.loads(line)
                pod, name = event["object"], event["object"]["metadata"]["name"]
                if event["type"] == "ADDED":
                    self._number += 1
                    thread = threading.Thread(target=self._run, args=(pod, f"127.0.0.{self._number}"))
                    self._threads.append(thread)
                    thread.start()
                elif event["type"] == "DELETED" and name in self.running:
                    self.running[name].kill()

    def _run(self, pod: Object, address: str) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        self.running[name] = started = self._start(pod, address)
        ready = {"type": "Ready", "status": "True"}
        about = {"name": container, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
        status = {"podIP": address, "conditions": [ready], "startTime": pod["metadata"]["creationTimestamp"]}
        self._report(name, {**status, "phase": "Running", "containerStatuses": [{**about, "state": {"running": {}}}]})
        code = started.end()
        ended = {**about, "ready": False, "state": {"terminated": {"exitCode": code, "reason": "Completed"}}}
        self._report(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})

    def _report(self, name: str, status: Object) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        with suppress(requests.RequestException):  # the server may be gone
            requests.patch(f"{self._pods}/{name}/status", json.dumps({"status": status}), headers=headers, timeout=9)

    def close(self) -> None:
        """Kill what runs."""
        for started in list(self.running.values()):
            started.kill()
        for thread in self._threads:
            thread.join()


@contextmanager
def kubelet(url: str, start: Callable[[Object, str], Started]) -> Iterator[Kubelet]:
    """A kubelet, whose pods end with the context."""
    made = Kubelet(url, start)
    watching = threading.Thread(target=made.watch, daemon=True)
    watching.start()
    try:
        yield made
    finally:
        made.close()
