"""Pods of the manifests on this machine, as a kubelet starts them: namespaces, a read-only root, a user without a name.

They have one network, in which nothing is but them: each reaches the others at 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from deploy.manifests import container, environ, pods

if TYPE_CHECKING:
    from deploy.images import Image

#: an id that no image has a name for, as OpenShift gives
UID = 1_000_650_000
PATIENCE_S = 120
_HERE = Path(__file__).parents[1]
_LOOPBACK_UP = (
    "import fcntl, socket, struct, sys, time\n"
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh22x', b'lo', 0x1))\n"
    "print('up', flush=True); sys.stdin.read()"
)
_REQUEST = (
    "import json, sys, urllib.error, urllib.request\n"
    "url, headers, body = json.loads(sys.argv[1])\n"
    "request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)\n"
    "try: answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)\n"
    "except urllib.error.HTTPError as error: answer = error\n"
    "except OSError as error: print(0, error); sys.exit()\n"
    "print(answer.status, answer.read().decode())"
)


class Answer(NamedTuple):
    """``status`` 0: there was none, and ``text`` says why."""

    status: int
    text: str


class Pod:
    """A running container of a pod. ``mounts``: by the path in it a folder, or the size of a file system in memory.

    Of the folders only that of the journal is written.
    """

    def __init__(
        self,
        node: Node,
        image: Image,
        arguments: list[str],
        mounts: Mapping[str, Path | str],
        variables: Mapping[str, str],
    ) -> None:
        config = image.config
        given = dict(one.split("=", 1) for one in config["Env"])
        self._spec = {
            "root": str(image.root),
            "mounts": {path: str(source) for path, source in mounts.items()},
            "writable": ["/var/lib/checkback"],
            "uid": UID,
            "cwd": config["WorkingDir"],
            "environ": {**given, **variables},
            "command": [*config["Entrypoint"], *arguments],
        }
        command = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--propagation=private"]
        command += [sys.executable, str(Path(__file__).with_name("container.py")), json.dumps(self._spec)]
        self._process = subprocess.Popen(
            node.inside(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.output = ""

    @property
    def pid(self) -> int:
        """Of the container's first process, outside it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> int:
        """Its exit code, after what it prints is in `output`."""
        self.output += "".join(self._process.communicate(timeout=PATIENCE_S))
        return self._process.returncode

    def terminate(self) -> int:
        """SIGTERM, as of a pod that is deleted; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """Kill all that is in it."""
        with suppress(IndexError, FileNotFoundError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # and with it all others of its namespace
        self._process.communicate()


class Node:
    """A network without a way out, and the pods in it."""

    def __init__(self, images: Mapping[str, Image], folder: Path, variables: Mapping[str, str]) -> None:
        """``folder``: of volumes, by name; ``variables``: of every pod."""
        self._images, self._folder, self._variables = images, folder, variables
        self._running: list[Pod] = []
        command = ["unshare", "--net", sys.executable, "-c", _LOOPBACK_UP]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            pytest.skip("no network of one's own can be made here")

    def inside(self, command: list[str]) -> list[str]:
        """The command in the network of the pods."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command]

    def start(self, name: str, *arguments: str, journal: Path | str | None = None) -> Pod:
        """A pod of this workload, with more arguments; ``journal``: its volume."""
        pod = pods()[name]
        found = container(pod)
        sources: dict[str, Path | str] = {"tmp": "1g"}
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                sources[volume["name"]] = self._folder / volume["secret"]["secretName"]
            elif "configMap" in volume:
                sources[volume["name"]] = self._folder / "settings"
        if journal is not None:
            sources["journal"] = journal
        mounts = {one["mountPath"]: sources[one["name"]] for one in found["volumeMounts"]}
        variables = {**self._variables, **environ(pod, 0)}
        return self._started(Pod(self, self._images[found["image"]], [*found["args"], *arguments], mounts, variables))

    def run(self, image: str, *arguments: str) -> str:
        """What a command prints, which must succeed."""
        mounts: dict[str, Path | str] = {"/tmp": "1g", "/etc/checkback": self._folder / "settings"}  # noqa: S108 - its own
        pod = self._started(Pod(self, self._images[image], list(arguments), mounts, self._variables))
        code = pod.end()
        assert code == 0, f"{arguments}: {pod.output}"
        return pod.output

    def _started(self, pod: Pod) -> Pod:
        self._running.append(pod)
        return pod

    def ask(self, port: int, path: str, body: Any = None, token: str | None = None) -> Answer:
        """The answer of a pod; a POST with ``body``."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = json.dumps([f"http://127.0.0.1:{port}{path}", headers, body])
        command = self.inside([sys.executable, "-c", _REQUEST, request])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        status, _, text = done.stdout.partition(" ")
        return Answer(int(status), text)

    def until(self, pod: Pod, port: int, path: str, fits: Callable[[Answer], bool]) -> Answer:
        """The first answer that fits, while the pod runs."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.ask(port, path)
            if fits(answer):
                return answer
            assert pod.runs, f"the pod has ended with {pod.end()}: {pod.output}"
            assert time.monotonic() < deadline, f"{path} is {answer}"

    def close(self) -> None:
        """Kill what runs."""
        for pod in self._running:
            if pod.runs:
                pod.kill()
        self._holder.kill()
        self._holder.communicate()


@contextmanager
def node(images: Mapping[str, Image], folder: Path, variables: Mapping[str, str]) -> Iterator[Node]:
    """A node, whose pods end with the context."""
    made = Node(images, folder, variables)
    try:
        yield made
    finally:
        made.close()
