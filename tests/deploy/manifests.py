"""The manifests of conf/kubernetes, as `kustomize build` makes them, but for tags and names' hashes."""

from __future__ import annotations

from copy import deepcopy
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


def with_component(name: str, manifest: Manifest) -> Manifest:
    """A manifest as this component changes it."""
    for patch in kustomization(FOLDER / name)["patches"]:
        if patch["target"] == {"kind": manifest["kind"], "name": manifest["metadata"]["name"]}:
            manifest = with_patch(manifest, patch["patch"])
    return manifest


def with_patch(manifest: Manifest, patch: str) -> Manifest:
    """A manifest as this JSON patch changes it."""
    changed: Any = deepcopy(manifest)
    for step in yaml.safe_load(patch):
        *path, last = step["path"].strip("/").split("/")
        place = changed
        for key in path:
            place = place[int(key) if key.isdecimal() else key]
        if last == "-":
            place.append(step["value"])
        else:
            assert (last in place) is (step["op"] == "replace"), f"{step['op']} {step['path']}"
            place[last] = step["value"]
    return dict(changed)


def template(workload: Manifest) -> Manifest | None:
    """The template of a workload's pods; None for what has none."""
    spec = workload["spec"]
    found: Manifest | None = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return found


def pods(folder: Path = FOLDER) -> dict[str, Manifest]:
    """By name the template of each workload's pods."""
    return {one["metadata"]["name"]: found for one in resources(folder) if (found := template(one))}


def container(pod: Manifest) -> Manifest:
    """The one container of a pod."""
    (found,) = pod["spec"]["containers"]
    return dict(found)


def environ(pod: Manifest, index: int) -> dict[str, str]:
    """What the manifest itself gives to the pod with this index of a StatefulSet."""
    given = [one for one in container(pod).get("env", []) if "value" in one]
    return {one["name"]: one["value"].replace("$(POD_INDEX)", str(index)) for one in given}
