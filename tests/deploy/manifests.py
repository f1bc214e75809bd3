"""The manifests of conf/kubernetes, as `kustomize build` makes them, but for tags and names' hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "conf/kubernetes"
CONTAINERFILE = FOLDER.parent / "container/Containerfile"
Manifest = dict[str, Any]


def kustomization(folder: Path = FOLDER) -> Manifest:
    """What says which files are resources."""
    found: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return found


def resources(folder: Path = FOLDER) -> list[Manifest]:
    """All resources of the files."""
    files = kustomization(folder)["resources"]
    return [one for file in files for one in yaml.safe_load_all((folder / file).read_text("utf-8"))]


def template(workload: Manifest) -> Manifest | None:
    """The template of a workload's pods; None for what has none."""
    spec = workload["spec"]
    found: Manifest | None = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return found


def pods() -> dict[str, Manifest]:
    """By name the template of each workload's pods."""
    return {one["metadata"]["name"]: found for one in resources() if (found := template(one))}


def container(pod: Manifest) -> Manifest:
    """The one container of a pod."""
    (found,) = pod["spec"]["containers"]
    return dict(found)


def environ(pod: Manifest, index: int) -> dict[str, str]:
    """What the manifest itself gives to the pod with this index of a StatefulSet."""
    given = [one for one in container(pod).get("env", []) if "value" in one]
    return {one["name"]: one["value"].replace("$(POD_INDEX)", str(index)) for one in given}
