"""The command line: exit codes, one line of error, what the commands print."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback import __version__
from checkback.build import commit
from checkback.cli import main
from checkback.commands import MODULES, application
from checkback.settings import Settings, flatten
from checkback.storage.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
SECRET = base64.b64encode(b"a key that nobody may see").decode()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fails(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Runs a command that fails, with one line on stderr and nothing on stdout; returns the line."""
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("checkback: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("option", ["--since", "--as-of"])
def test_what_is_no_time_is_told_with_its_option(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    said = fails(capfd, "tx", "decisions", option, "1h", "--set", "storage.root=.")
    assert said.startswith(f"checkback: {option}: '1h' is not a time; write 2026-11-20T15:00")


@pytest.mark.parametrize("command", [["reconcile", "--available-now"], ["land", "--half", "."], ["tx", "list"]])
def test_a_root_that_delta_rs_would_read_as_a_url_is_refused(
    command: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "a%20b").mkdir()
    said = fails(capfd, *command, "--set", "storage.root=a%20b")
    assert said.startswith("checkback: storage.root: ")
    assert "a%20b has a % and two digits" in said


@pytest.mark.parametrize("command", [["reconcile", "--available-now"], ["land", "--half", "."], ["tx", "list"]])
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("transaction.timeuot=2s", "did you mean transaction.timeout?"),
        ("transaction.timeout=6", "500ms, 6s, 1m, 72h or 2d"),
        ("transaction.check_max=0", "transaction.check_max (--set): is 0, must be at least 1"),
        ("producers.orders.endpoints=[ftp://host/check]", "producers.orders.endpoints[0] (--set)"),
        ("storage.root=a-file/data", "storage.root (--set)"),
        ("storage.root=a-file", "storage.root (--set)"),
        ("storage.root=/proc/none/data", "storage.root (--set)"),
    ],
)
def test_wrong_setting_is_told_in_one_line(
    command: list[str], override: str, told: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "a-file").write_text("")
    assert told in fails(capfd, *command, "--set", override)


def test_checkpoints_that_cannot_be_written_are_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "a-file").write_text("")
    line = fails(capfd, "reconcile", "--set", "storage.checkpoints=a-file/x")
    assert line.startswith("checkback: storage.checkpoints (--set): cannot write in ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing command"),
        (["config"], "Missing command"),
        (["tx"], "Missing command; see `checkback tx --help`"),
        (["reconsile"], "No such command"),
        (["reconcile", "--available"], "No such option"),
        (["reconcile", "surplus"], "unexpected extra argument"),
        (["reconcile", "--config"], "requires an argument"),
        (["reconcile", "--config", "none.yml"], "none.yml: cannot be read: No such file or directory"),
        (["land"], "give --half PATH, --op PATH or both"),
        (["land", "--half", "none.jsonl"], "--half: there is no "),
        (["land", "--op", "none.jsonl"], "--op: there is no "),
        (["config", "show", "--set", "transaction.timeout"], "KEY=VALUE"),
    ],
)
def test_wrong_usage_is_told_in_one_line(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert told in fails(capfd, *arguments)


def test_help_shows_optional_arguments_in_brackets(capfd: pytest.CaptureFixture[str]) -> None:
    for command, argument in (("tx resume", "[TX]"), ("tx describe", "[TX | QUEUE/OFFSET]")):
        assert main([*command.split(), "--help"]) == 0
        assert f"checkback {command} [OPTIONS] {argument} " in capfd.readouterr().out


def test_usage_error_points_to_the_help_of_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert "see `checkback land --help`" in fails(capfd, "land", "--hlf", "x")
    assert "see `checkback tx list --help`" in fails(capfd, "tx", "list", "--stat", "x")
    assert "see `checkback tx --help`" in fails(capfd, "tx", "lst")
    assert "see `checkback --help`" in fails(capfd, "lend")


def test_debug_adds_the_traceback_before_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--debug", "--set", "transaction.check_max=0"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("checkback: transaction.check_max (--set): ")


def test_debug_shows_no_secret(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", f"{SECRET}!")
    assert main(["config", "show", "--debug", "--set", "producers.orders.secret=env:S"]) == 2
    assert main(["config", "show", "--debug", "--set", f"producers.orders.secret={SECRET}"]) == 2
    assert SECRET not in "".join(capfd.readouterr())


def test_unexpected_error_is_one_line_that_names_debug(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    # A working folder that is gone: nothing in Checkback expects it.
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    line = fails(capfd, "land", "--half", "x", code=1)
    assert line.startswith("checkback: unexpected FileNotFoundError: ")
    assert line.endswith("run again with --debug\n")


@pytest.mark.processes
def test_full_disk_is_told_with_what_helps() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "checkback", "config", "show"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "checkback: no space left on device; make room on the disk\n"


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"checkback {__version__} (commit {commit()})\n"
    assert re.fullmatch("[0-9a-f]{12}|unknown", commit())


def test_config_show_has_every_setting_its_value_and_origin(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKBACK__CHECK__CONCURRENCY", "8")
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    Path("my.yml").write_text("producers: {orders: {endpoints: ['http://a/'], secret: 'env:ORDERS_SECRET'}}")
    assert main(["config", "show", "--config", "my.yml", "--set", "transaction.timeout=120s"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert SECRET not in out
    shown = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert set(shown) == set(flatten(Settings.model_validate({"producers": {"orders": {}}})))
    assert shown["transaction.timeout"] == ["2m", "--set"]
    assert shown["transaction.max_age"] == ["3d", "default"]
    assert shown["check.concurrency"] == ["8", "CHECKBACK__CHECK__CONCURRENCY"]
    assert shown["producers.orders.secret"] == ["****", "my.yml"]
    assert shown["producers.orders.endpoints"] == ['["http://a/"]', "my.yml"]
    assert shown["storage.catalog"] == ["-", "default"]


def test_config_show_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "-o", "json", "--set", "storage.root=a[b]c"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["storage.root"] == {"value": "a[b]c", "origin": "--set"}
    assert shown["transaction.check_max"] == {"value": 15, "origin": "default"}
    assert shown["storage.catalog"]["value"] is None


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The installed console script, as a process of its own."""
    script = Path(sys.executable).parent / "checkback"
    return subprocess.run(
        [str(script), *arguments], capture_output=True, text=True, check=False, timeout=120, env=os.environ | environ
    )


@pytest.mark.processes
def test_help_and_settings_need_no_java_and_no_spark() -> None:
    for arguments in (["--help"], ["reconcile", "--help"], ["config", "show"]):
        run = program(*arguments, JAVA_HOME="/nowhere", PATH="")
        assert (run.returncode, run.stderr) == (0, "")
    code = "import sys; from checkback.cli import main; main(['config', 'show']); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


#: what scripts and operators type: a change here breaks them
COMMANDS = {
    *(
        "gateway",
        "land",
        "reconcile",
        "push",
        "rebuild",
        "maintain",
        "backup",
        "restore",
        "status",
        "outages",
        "audit",
        "what-if",
        "dashboard",
    ),
    *(f"tx {verb}" for verb in ("list", "describe", "decisions", "resolve", "cancel", "resume")),
    *("clients", "topic list", "topic consume", "config show", "erase"),
    *(f"group {verb}" for verb in ("list", "describe", "reset", "reconsume", "remove-topic", "remove")),
}
#: those that run until they are ended, or print what they do
_SERVICES = {"gateway", "land", "reconcile", "push", "rebuild", "dashboard"}
_CHANGES = {name for name in COMMANDS if name.split()[-1] in ("resolve", "cancel", "resume", "reset", "reconsume")}
_CHANGES |= {"group remove-topic", "group remove", "erase"}


def commands() -> dict[str, Any]:
    """Every command, by its words."""
    found: dict[str, Any] = {}
    for name, each in application().commands.items():
        verbs = getattr(each, "commands", None)
        found |= {name: each} if verbs is None else {f"{name} {verb}": one for verb, one in verbs.items()}
    return found


def test_commands_and_the_options_that_many_have() -> None:
    """-o of what answers, --dry-run beside --yes of what changes something, the settings of all."""
    options = {name: {text for each in command.params for text in each.opts} for name, command in commands().items()}
    assert options.keys() == COMMANDS
    assert {name for name, of in options.items() if {"-o", "--output"} <= of} == COMMANDS - _SERVICES
    assert {name for name, of in options.items() if {"--yes", "--actor", "--reason"} <= of} == _CHANGES
    assert {name for name, of in options.items() if "--dry-run" in of} == {*_CHANGES, "maintain"}
    assert all({"--config", "--set", "--debug"} <= of for of in options.values())


@pytest.mark.processes
def test_each_command_is_in_the_modules_that_are_named() -> None:
    for first in {name.split()[0] for name in COMMANDS}:
        code = f"from checkback.commands import application; print(*sorted({_WORDS.format(first)}))"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert set(run.stdout.split()) == {name.split()[-1] for name in COMMANDS if name.split()[0] == first}
    assert {name.split()[0] for name in COMMANDS} == MODULES.keys()


_WORDS = "getattr((app := application(['{0}']).commands['{0}']), 'commands', None) or ['{0}']"


@pytest.mark.processes
def test_help_groups_the_commands() -> None:
    """In a process of its own: here some of the commands have been loaded before others."""
    out = program("--help").stdout
    panels = [line.strip("╭╮─ ") for line in out.splitlines() if line.startswith("╭")]
    assert panels == ["Options", "Run", "Answers", "Transactions, topics, consumer groups", "Settings"]
    assert {line.split()[1] for line in out.splitlines() if re.match(r"│ [a-z]", line)} == MODULES.keys()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "completed"), [("checkback tx re", ["resolve", "resume"]), ("checkback gat", ["gateway"])]
)
def test_a_shell_completes_commands(typed: str, completed: list[str]) -> None:
    words = {"_CHECKBACK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": f"{typed.count(' ')}"}
    assert program(**words).stdout.split() == completed


def test_who_acts_is_the_user_unless_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tx", "resolve", "x", "--commit", "--reason", "b"]
    monkeypatch.setenv("USER", "al: ice")
    assert '--actor: has a ": "' in fails(capfd, *arguments)
    assert "there is no folder" in fails(capfd, *arguments, "--actor", "alice")
    monkeypatch.delenv("USER")
    assert "Missing option '--actor'" in fails(capfd, *arguments)


def test_yes_and_dry_run_exclude_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    told = fails(capfd, "group", "remove", "g", "--reason", "b", "--actor", "a", "--yes", "--dry-run")
    assert told == "checkback: --yes and --dry-run exclude each other; give one of them\n"


@pytest.mark.processes
def test_a_command_does_not_wait_for_those_of_others() -> None:
    code = "import sys; from checkback.cli import main; main(); sys.exit('checkback.commands.reconcile' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code, "config", "show"], stdout=subprocess.DEVNULL, check=False)
    assert run.returncode == 0


@pytest.mark.processes
def test_the_end_of_a_command_does_not_wait_for_the_garbage_collector() -> None:
    code = "import gc, sys; from checkback.cli import main; main(); sys.exit(gc.get_freeze_count() == 0)"
    run = subprocess.run([sys.executable, "-c", code, "config", "show"], stdout=subprocess.DEVNULL, check=False)
    assert run.returncode == 0


@pytest.mark.processes
def test_an_answer_does_not_wait_for_pandas(tmp_path: Path) -> None:
    DeltaLog.create("half", f"{tmp_path}/half", sync=False)
    code = "import sys; from checkback.cli import main; code = main(); sys.exit(code or 'pandas' in sys.modules)"
    command = [sys.executable, "-c", code, "tx", "list", "--set", f"storage.root={tmp_path}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.processes
def test_without_java_a_command_is_told_what_to_install() -> None:
    run = program("reconcile", "--available-now", JAVA_HOME="/nowhere")
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "install Java 17 or 21" in run.stderr


@pytest.mark.processes
def test_output_may_be_closed_early() -> None:
    command = f"{Path(sys.executable).parent / 'checkback'} config show -o json | head -1"
    run = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("{\n", "")


@pytest.mark.processes
def test_missing_package_is_told_in_one_line(folder: Path) -> None:
    # The package alone, as spark-submit --py-files brings it, under a Python that has nothing else.
    archive = folder / "checkback.zip"
    subprocess.run([sys.executable, str(ROOT / ".ci/zip.py"), str(ROOT / "lib/checkback"), str(archive)], check=True)
    job = f"import sys; sys.path.insert(0, {str(archive)!r}); from checkback.cli import run; run('reconcile')"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", job], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("checkback: the Python module typer is missing; ")


@pytest.mark.processes
def test_zip_is_the_same_every_time_and_holds_the_package_and_conf(folder: Path) -> None:
    for name in ("a.zip", "b.zip"):
        subprocess.run([sys.executable, str(ROOT / ".ci/zip.py"), str(ROOT / "lib/checkback"), name], check=True)
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()
    names = zipfile.ZipFile("a.zip").namelist()
    assert {"checkback/__init__.py", "checkback/py.typed", "checkback/reconcile/segment.py"} <= set(names)
    others = {name for name in names if not (name.startswith("checkback/") and name.endswith(".py"))}
    conf = {f"checkback/{file.relative_to(ROOT)}" for file in (ROOT / "conf").rglob("*") if file.is_file()}
    assert others == {"checkback/py.typed", "checkback/COMMIT", "checkback/LICENSE", *conf}


# pending


@pytest.fixture
def half(spark: SparkSession, folder: Path) -> Path:
    """Tables in ./data with 60 pending half messages, one a second, of the groups orders and pay in turn."""
    from checkback.storage.spark_schemas import HALF
    from checkback.storage.tables import Tables

    tables = Tables.of(Settings().storage)
    tables.create(spark, "half", "decisions", "check_requests", "check_answers")
    born = [datetime(2026, 3, 29, 0, 59, number, 250_000, tzinfo=timezone.utc) for number in range(60)]
    rows: list[tuple[object, ...]] = [
        (
            0,
            offset,
            f"tx[red]{offset}",
            "pay" if offset % 2 else "orders",
            "t",
            0,
            "",
            "",
            {},
            b"",
            None,
            time,
            time,
            *(None,) * 4,
        )
        for offset, time in enumerate(born)
    ]
    tables.append(spark.createDataFrame(rows, HALF).coalesce(1), "half", "test", 0)
    return folder / "data"


def test_pending_json_is_one_object_a_line_in_utc(half: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "list", "-o", "json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["queue_offset"] for row in rows] == list(range(60))
    assert rows[7]["born_timestamp"] == "2026-03-29T00:59:07.250Z"
    assert rows[7]["next_check_at"] == "2026-03-29T00:59:13.250Z"
    assert (rows[7]["check_times"], rows[7]["last_outcome"]) == (0, None)
    assert list(rows[0])[:5] == ["queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic"]


def test_pending_table_shows_50_rows_and_counts_the_others(half: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + 50 + 1
    assert "tx[red]0" in lines[1]
    assert lines[-1] == "and 10 more; -o json shows all"


def test_pending_of_a_group(half: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tx", "list", "--group", "pay"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + 30
    assert not any("orders" in line for line in lines)
    assert main(["tx", "list", "--group", "nobody"]) == 0
    told = "Nothing of the group nobody is pending. No half message is of the group nobody; there are orders, pay.\n"
    assert capfd.readouterr().out == told


def test_pending_without_tables_says_what_to_do(
    spark: SparkSession, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "storage.root (default): there is no folder " in fails(capfd, "tx", "list")
    (folder / "data").mkdir()
    assert "there is no such table; run `checkback reconcile` first" in fails(capfd, "tx", "list")


# Jobs


@pytest.mark.processes
@pytest.mark.spark
def test_job_without_deltas_jars_is_told_what_to_add(folder: Path) -> None:
    submit = Path(sys.executable).parent / "spark-submit"
    job = [str(submit), "--conf", "spark.log.level=ERROR", str(ROOT / "jobs/land.py"), "--available-now", "--half", "."]
    # spark-submit passes what Python writes to stderr on to its own stdout.
    run = subprocess.run(
        job,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    assert run.returncode == 2
    assert "Traceback" not in run.stdout
    told = "Delta Lake's JARs are missing; add --packages io.delta:delta-spark_4.2_2.13:4.4.0"
    assert f"checkback: spark-submit: {told}" in run.stdout.splitlines()


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["tx", "list"],
        ["topic", "list"],
        ["group", "list"],
        ["audit"],
        ["tx", "describe", "x"],
        ["what-if"],
        ["maintain"],
        ["rebuild"],
        ["topic", "consume", "payments"],
        ["tx", "resolve", "x", "--commit", "--actor", "a", "--reason", "b"],
    ],
    ids=" ".join,
)
def test_in_another_folder_there_are_no_tables(
    command: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """None is created, not by `rebuild` either; and who works on tables need not have the producers' secrets."""
    (folder / "my.yml").write_text('producers: {orders: {secret: "env:UNSET", token: "env:UNSET_TOO"}}')
    said = fails(capfd, *command, "--config", "my.yml")
    fix = "name the folder of the tables, or reconcile first"
    assert said == f"checkback: storage.root (default): there is no folder {folder / 'data'}; {fix}\n"
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        ("reconcile", "producers.orders.secret"),
        ("gateway", "producers.orders.secret"),
        ("dashboard", "dashboard.token"),
    ],
)
def test_secrets_are_asked_for_where_they_are_needed(
    command: str, setting: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    section, *group, key = setting.split(".")
    content = {key: "env:UNSET"}
    (folder / "my.yml").write_text(json.dumps({section: {group[0]: content} if group else content}))
    (folder / "data").mkdir()
    told = fails(capfd, command, "--config", "my.yml")
    assert told.startswith(f"checkback: {setting} (my.yml): the environment variable UNSET is not set; ")


def test_a_rebuild_that_a_signal_has_ended_has_failed(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes behind it in a script does not run."""
    (folder / "data").mkdir()
    monkeypatch.setattr("checkback.commands.reconcile.running_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr("checkback.application.rebuild.rebuild", lambda *_: None)
    told = fails(capfd, "rebuild", "--set", "storage.root=data", code=1)
    assert told == "checkback: the rebuild was stopped before its end; run it again before `checkback reconcile`\n"
