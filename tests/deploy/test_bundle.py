"""The bundle for Databricks: valid by its published model, whole, and its commands are ones that there are."""

from __future__ import annotations

import glob
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job

from checkback import cli
from checkback.commands import application

_ROOT = Path(__file__).parents[2]
_BUNDLE = _ROOT / "conf/databricks"
#: what somebody who deploys must say
_SAID = {"spark_version": "18.0.x-scala2.13", "node_type": "m5d.large", "on_failure": ["ops@example.com"]}


def _yaml(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def _bundle() -> dict[str, Any]:
    return _yaml(_BUNDLE / "databricks.yml")


def _jobs() -> dict[str, dict[str, Any]]:
    files = [file for pattern in _bundle()["include"] for file in glob.glob(str(_BUNDLE / pattern))]
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        jobs = _yaml(Path(file))["resources"]["jobs"]
        assert not found.keys() & jobs.keys()
        found |= jobs
    return found


def _with(variables: dict[str, Any], value: Any) -> Any:
    """``${var.name}`` replaced, as `databricks bundle` does it."""
    if isinstance(value, dict):
        return {key: _with(variables, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with(variables, each) for each in value]
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{var\.(\w+)\}", value)
        if whole:
            return variables[whole[1]]
        return re.sub(r"\$\{var\.(\w+)\}", lambda found: str(variables[found[1]]), value)
    return value


def _deployed(target: str) -> dict[str, dict[str, Any]]:
    bundle = _bundle()
    variables = {name: about.get("default") for name, about in bundle["variables"].items()}
    variables |= _SAID | bundle["targets"][target].get("variables", {})
    jobs: dict[str, dict[str, Any]] = _with(variables, _jobs())
    return jobs


_JOBS = sorted(_jobs())


def test_bundle_has_what_a_bundle_may_have() -> None:
    bundle = _bundle()
    assert set(bundle) == {"bundle", "include", "artifacts", "variables", "targets"}
    assert set(bundle["targets"]) == {"dev", "prod"}
    assert [name for name, about in bundle["targets"].items() if about.get("default")] == ["dev"]
    assert {name: about["mode"] for name, about in bundle["targets"].items()} == {
        "dev": "development",
        "prod": "production",
    }
    assert all(about["description"] for about in bundle["variables"].values())
    for target in bundle["targets"].values():
        assert set(target.get("variables", {})) <= set(bundle["variables"])
    wheel = (_BUNDLE / bundle["artifacts"]["checkback"]["path"]).resolve()
    assert wheel == _ROOT


@pytest.mark.parametrize("target", ["dev", "prod"])
@pytest.mark.parametrize("name", _JOBS)
def test_job_is_valid(name: str, target: str) -> None:
    """By databricks-bundles: an unknown field, or one of another type, is an error."""
    job = Job.from_dict(_deployed(target)[name])  # type: ignore[arg-type]
    assert "$" not in str(job.as_dict())


def test_model_refuses_what_is_wrong() -> None:
    job = _deployed("dev")[_JOBS[0]]
    with pytest.raises(ValueError, match="max_concurent_runs"):
        Job.from_dict(job | {"max_concurent_runs": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", _JOBS)
def test_tasks_run_commands_that_there_are(name: str) -> None:
    command = application()
    for task in _deployed("prod")[name]["tasks"]:
        wheel = task["python_wheel_task"]
        parameters = list(wheel["parameters"])
        chosen = command.commands[parameters[0]]
        chosen.make_context(parameters[0], parameters[1:], resilient_parsing=False)
        assert wheel["package_name"] == "checkback"
        (entry,) = entry_points(group="databricks", name=wheel["entry_point"])
        assert entry.load() is cli.job
        keys = {task["job_cluster_key"]} - {each["job_cluster_key"] for each in _deployed("prod")[name]["job_clusters"]}
        assert not keys
        assert [library["whl"] for library in task["libraries"]] == ["../../../dist/*.whl"]


def test_one_job_reconciles() -> None:
    jobs = _deployed("prod")
    assert jobs["checkback_reconcile"]["continuous"]["pause_status"] == "UNPAUSED"
    assert jobs["checkback_reconcile_scheduled"]["schedule"]["pause_status"] == "PAUSED"
    assert all(job["max_concurrent_runs"] == 1 for job in jobs.values())


def test_job_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wheel task counts as failed only when its entry point raises."""
    monkeypatch.setattr(sys, "argv", ["job", "config", "show", "--set", "storage.rot=x"])
    with pytest.raises(SystemExit) as ended:
        cli.job()
    assert ended.value.code == 2
    assert "storage.rot" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["job", "config", "show"])
    cli.job()
