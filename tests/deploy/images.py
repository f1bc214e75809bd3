"""The images of conf/container, built by buildah from a Debian that is made here: no registry of images is asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.manifests import CONTAINERFILE
from support.debian import unpacked

ROOT = CONTAINERFILE.parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
#: the certificates that this machine trusts: those of a proxy to the registries may be among them
_TRUSTED = Path("/usr/local/share/ca-certificates")


@dataclass(frozen=True)
class Image:
    """``root``: its files; ``config``: of the OCI image."""

    root: Path
    config: dict[str, Any]


class _Builder:
    """buildah with storage in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tools = folder / "tools"
        tools.mkdir()
        libraries = ("libassuan0", "libdevmapper1.02.1", "libgpgme11", "libseccomp2")  # which a machine may lack
        unpacked(tools, "mmdebstrap", "buildah", *libraries, "patchelf")
        self._tools = tools
        self._find_libraries()
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (folder / "registries.conf").write_text("")
        temporary = folder / "tmp"
        temporary.mkdir()
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(temporary),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }

    def _find_libraries(self) -> None:
        """Write into buildah where its libraries are: it starts itself without an environment."""
        folders = [file.parent for file in self._tools.rglob("lib*.so.*")]
        command = [str(self._tools / "usr/bin/patchelf"), "--force-rpath", "--set-rpath"]
        command += [":".join(map(str, dict.fromkeys(folders))), str(self._tools / "usr/bin/buildah")]
        subprocess.run(command, check=True)

    def buildah(self, *arguments: str) -> str:
        """What it prints on stdout."""
        command = [str(self._tools / "usr/bin/buildah"), "--storage-driver=overlay"]
        command += [f"--root={self._folder}/storage", f"--runroot={self._folder}/run", *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()

    def build(self, file: Path, context: Path, tag: str, *options: str) -> None:
        """Build an image."""
        policy = f"--signature-policy={self._folder}/policy.json"
        self.buildah(
            "build", policy, "--isolation=chroot", "--layers", f"--tag={tag}", f"--file={file}", *options, str(context)
        )

    def base(self) -> str:
        """The name of an image that has what the Containerfile expects of its base."""
        folder = self._folder / "base"
        folder.mkdir()
        command = ["perl", str(self._tools / "usr/bin/mmdebstrap"), "--mode=root", "--variant=minbase"]
        command += ["--include=python3,python3-venv,ca-certificates", "bookworm", str(folder / "base.tar")]
        if any(_TRUSTED.glob("*.crt")):
            command[2:2] = [
                f"--customize-hook=cp {_TRUSTED}/*.crt $1{_TRUSTED}",
                "--customize-hook=chroot $1 update-ca-certificates",
            ]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"no Debian can be made here: {done.stderr[-300:]}")
        (folder / "Containerfile").write_text(
            "FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        )
        self.build(folder / "Containerfile", folder, "localhost/base")
        (folder / "base.tar").unlink()
        return "localhost/base"

    def mounted(self, name: str) -> Image:
        """The image with its files in a folder."""
        container = self.buildah("from", f"--signature-policy={self._folder}/policy.json", name)
        config = json.loads(self.buildah("inspect", container))["OCIv1"]["config"]
        return Image(Path(self.buildah("mount", container)), config)

    def close(self) -> None:
        """Unmount and remove everything."""
        self.buildah("umount", "--all")
        self.buildah("rm", "--all")
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def built(folder: Path) -> Iterator[dict[str, Image]]:
    """By name the images of the manifests. Skips the test where they cannot be built."""
    if os.geteuid():
        pytest.skip("images are built by root only")
    builder = _Builder(folder)
    arguments = [f"--build-arg=BASE={builder.base()}", f"--build-arg=REVISION={REVISION}"]
    targets = {"checkback-service": ["--target=service"], "checkback": []}
    try:
        for name, options in targets.items():
            builder.build(CONTAINERFILE, ROOT, f"localhost/{name}", *arguments, *options)
        yield {name: builder.mounted(f"localhost/{name}") for name in targets}
    finally:
        builder.close()
