"""The alarms in the nights that matter, as Prometheus itself evaluates them: promtool test rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.debian import unpacked

pytestmark = pytest.mark.processes

RULES = Path(__file__).parents[2] / "conf/prometheus/alarms.yml"
RUNNING = 'checkback_query_running{job="%s", instance="a:9108", query="reconcile"}'
OFFSET = 'checkback_gateway_last_offset{job="%s", instance="%s", queue_id="%s"}'


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The one that is installed, or Debian's."""
    if found := shutil.which("promtool"):
        return found
    folder = unpacked(tmp_path_factory.mktemp("prometheus"), "prometheus")
    return str(folder / "usr/bin/promtool")


def alarms(promtool: str, folder: Path, series: dict[str, str], at: str, interval: str = "1m") -> dict[str, list[str]]:
    """The labels that name what the alarms are about, by alarm, at a time; ``series`` by name as promtool writes them.

    promtool compares with what is expected and says what it got instead: nothing is expected here.
    """
    names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    about: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": []} for name in names],
            }
        ],
    }
    file = folder / "night.yml"
    file.write_text(yaml.safe_dump(about))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for name, got in re.findall(
        r"alertname: ?(\w+),.*?got:\[(.*?)\n\s*\]", re.sub(r"got:\s+\[", "got:[", said), re.DOTALL
    ):
        found[name] = re.findall(r"Labels:\{(.*?)\}", got)
    assert bool(found) == bool(done.returncode), said
    return found


def test_rules_are_valid(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_quiet_night(promtool: str, tmp_path: Path) -> None:
    series = {
        RUNNING % "shop": "1x120",
        OFFSET % ("gateway", "a:8900", 0): "0+100x120",
        "checkback_gateway_ready": "1x120",
        "checkback_gateway_journal_behind_seconds": "0.5x120",
        "checkback_process_start_time_seconds": "1000x120",
        'checkback_lag_seconds{table="half"}': "2x120",
        'checkback_checks_total{producer_group="orders", outcome="COMMIT"}': "0+60x120",
        'checkback_checks_total{producer_group="orders", outcome="NO_ANSWER"}': "0+1x120",
        'checkback_decisions_total{producer_group="orders", state="DISCARD"}': "3x120",
    }
    assert alarms(promtool, tmp_path, series, "2h") == {}


def test_one_of_two_installations_is_down(promtool: str, tmp_path: Path) -> None:
    """Its neighbour, which runs, does not hide it; nor is it forgotten after an hour."""
    series = {RUNNING % "shop": "1x600", RUNNING % "bank": "1x10 stale"}
    found = alarms(promtool, tmp_path, series, "8h")
    assert list(found) == ["CheckbackDown"]
    assert ['job="bank"' in one for one in found["CheckbackDown"]] == [True]


def test_nothing_was_ever_scraped(promtool: str, tmp_path: Path) -> None:
    assert list(alarms(promtool, tmp_path, {"up": "1x20"}, "10m")) == ["CheckbackDown"]


def test_query_that_has_ended_is_down(promtool: str, tmp_path: Path) -> None:
    assert "CheckbackDown" in alarms(promtool, tmp_path, {RUNNING % "shop": "1x10 0x20"}, "20m")


def test_deployment_moves_to_another_machine(promtool: str, tmp_path: Path) -> None:
    """The same queue at another address: a minute's pause is no alarm."""
    series = {
        RUNNING % "shop": "1x60",
        OFFSET % ("gateway", "a:8900", 0): "0+100x20 stale",
        OFFSET % ("gateway", "b:8900", 0): "_x21 2000+100x40",
    }
    assert alarms(promtool, tmp_path, series, "22m") == {}
    assert alarms(promtool, tmp_path, series, "50m") == {}


def test_one_of_two_gateways_is_gone(promtool: str, tmp_path: Path) -> None:
    series = {
        RUNNING % "shop": "1x60",
        OFFSET % ("gateway", "a:8900", 0): "0+100x60",
        OFFSET % ("gateway", "b:8900", 1): "0+100x20 stale",
    }
    found = alarms(promtool, tmp_path, series, "40m")
    assert list(found) == ["CheckbackGatewayDown"]
    assert ['queue_id="1"' in one for one in found["CheckbackGatewayDown"]] == [True]


def test_store_is_down(promtool: str, tmp_path: Path) -> None:
    """The gateway goes on acknowledging; nobody would notice until the journal is full."""
    series = {RUNNING % "shop": "1x60", "checkback_gateway_journal_behind_seconds": "0.5x10 30+60x20"}
    assert list(alarms(promtool, tmp_path, series, "20m")) == ["CheckbackJournalBehind"]


@pytest.mark.parametrize(("starts", "told"), [("1000x10 2000x20", []), ("1+60x30", ["CheckbackCrashLoop"])])
def test_crash_loop(promtool: str, tmp_path: Path, starts: str, told: list[str]) -> None:
    """It runs whenever it is scraped, and never for long; one restart is none."""
    series = {RUNNING % "shop": "1x30", 'checkback_process_start_time_seconds{instance="a:9108"}': starts}
    assert list(alarms(promtool, tmp_path, series, "20m")) == told


def test_group_that_does_not_answer(promtool: str, tmp_path: Path) -> None:
    """Of two installations with a group of this name, the one where it does not."""
    checks = 'checkback_checks_total{job="%s", producer_group="orders", outcome="%s"}'
    series = {
        RUNNING % "shop": "1x60",
        checks % ("shop", "COMMIT"): "0+100x60",
        checks % ("shop", "NO_ANSWER"): "0x60",
        checks % ("bank", "COMMIT"): "0+10x60",
        checks % ("bank", "NO_ANSWER"): "0+20x60",
    }
    found = alarms(promtool, tmp_path, series, "30m")
    assert list(found) == ["CheckbackGroupDoesNotAnswer"]
    assert [
        'job="bank"' in one and 'producer_group="orders"' in one for one in found["CheckbackGroupDoesNotAnswer"]
    ] == [True]


@pytest.mark.parametrize(("refused", "told"), [(4, []), (6, ["CheckbackGatewayRefuses"])])
def test_gateway_refuses_some(promtool: str, tmp_path: Path, refused: int, told: list[str]) -> None:
    """One refused request that is sent again wakes nobody; probes do not count."""
    requests = 'checkback_gateway_requests_total{route="/v1/half", status="%d"}'
    series = {RUNNING % "shop": "1x30", requests % 200: f"0+{100 - refused}x30", requests % 503: f"0+{refused}x30"}
    series['checkback_gateway_requests_total{route="other", status="200"}'] = "0+100x30"
    assert list(alarms(promtool, tmp_path, series, "20m")) == told


def _cronjob(name: str, *, ended: str, begun: str, active: str = "0x4000") -> dict[str, str]:
    """What kube-state-metrics says of a CronJob, each minute, made at 0; ``ended``: the last run that succeeded."""
    labels = f'{{namespace="shop", cronjob="{name}"}}'
    return {
        f"kube_cronjob_created{labels}": "0x4000",
        f"kube_cronjob_status_last_successful_time{labels}": ended,
        f"kube_cronjob_status_last_schedule_time{labels}": begun,
        f"kube_cronjob_status_active{labels}": active,
    }


_OTHERS = _cronjob("nightly-report", ended="_x4000", begun="60x4000") | _cronjob(
    "checkback-command", ended="_x4000", begun="_x4000"
)


@pytest.mark.parametrize(
    ("job", "at", "told"),
    [
        pytest.param(_cronjob("checkback-audit", ended="90x4000", begun="60x4000"), "1d", False, id="succeeded"),
        pytest.param(
            _cronjob("checkback-audit", ended="90x4000", begun="60x60 3600x4000", active="0x60 1x4000"),
            "1d",
            False,
            id="runs",
        ),
        pytest.param(
            _cronjob("checkback-audit", ended="90x4000", begun="60x60 3600x4000", active="0x60 1x9 0x4000"),
            "80m",
            True,
            id="failed",
        ),
        pytest.param(
            _cronjob("checkback-audit", ended="90x99 6000x4000", begun="60x60 3600x4000"),
            "2h",
            False,
            id="failed, and repeated by hand",
        ),
        pytest.param(_cronjob("checkback-backup", ended="_x4000", begun="60x4000"), "10m", True, id="first one failed"),
        pytest.param(_cronjob("checkback-backup", ended="_x4000", begun="_x4000"), "1d", False, id="not due yet"),
        pytest.param(_cronjob("checkback-backup", ended="90x4000", begun="60x4000"), "47h", False, id="waits"),
        pytest.param(_cronjob("checkback-backup", ended="90x4000", begun="60x4000"), "49h", True, id="suspended"),
        pytest.param(
            _cronjob("eu-checkback-maintain", ended="90x4000", begun="60x4000"), "2h", False, id="maintain waits"
        ),
        pytest.param(
            _cronjob("eu-checkback-maintain", ended="90x4000", begun="60x4000", active="1x4000"),
            "4h",
            True,
            id="maintain hangs",
        ),
    ],
)
def test_care(promtool: str, tmp_path: Path, job: dict[str, str], at: str, told: bool) -> None:
    """Of Checkback's own CronJobs only: others, and the one that nobody schedules, are somebody else's."""
    found = alarms(promtool, tmp_path, {RUNNING % "shop": "1x4000"} | _OTHERS | job, at)
    assert list(found) == ["CheckbackCareFails"] * told
    assert ["checkback-" in one for one in found.get("CheckbackCareFails", [])] == [True] * told
