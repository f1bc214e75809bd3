"""Become a container: `python container.py SPEC`, as root in namespaces of its own; see `Pod`."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_NO_NEW_PRIVILEGES = 38
_HOST = "pod-0"
_DEVICES = ("null", "zero", "random", "urandom")


def _mount(*arguments: str) -> None:
    command = ["mount", *arguments]
    subprocess.run(command, check=True)


def become(spec: dict[str, Any]) -> None:
    """Mount, leave this machine's files, become the user without any capability, and run the command."""
    root = spec["root"]
    _mount("--bind", root, root)
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for device in _DEVICES:
        Path(root, "dev", device).touch()
        _mount("--bind", f"/dev/{device}", f"{root}/dev/{device}")
    Path(root, "dev/fd").symlink_to("/proc/self/fd")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/run")
    Path(root, "run/hosts").write_text(f"127.0.0.1 localhost {_HOST}\n")
    _mount("--bind", f"{root}/run/hosts", f"{root}/etc/hosts")  # as a kubelet does
    for path, source in spec["mounts"].items():
        Path(root + path).mkdir(parents=True, exist_ok=True)
        if not os.path.isabs(source):
            _mount("-t", "tmpfs", "-o", f"size={source},mode=777", "tmpfs", root + path)
            continue
        _mount("--bind", source, root + path)
        if path not in spec["writable"]:
            _mount("-o", "remount,bind,ro", root + path)
    _mount("-o", "remount,bind,ro", root)
    socket.sethostname(_HOST)
    os.chroot(root)
    os.chdir(spec["cwd"])
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(0)
    os.setuid(spec["uid"])  # with which the capabilities are gone
    os.environ.clear()
    os.environ.update(spec["environ"])
    os.execvp(spec["command"][0], spec["command"])  # noqa: S606 - as a container's first process is started


if __name__ == "__main__":
    become(json.loads(sys.argv[1]))
