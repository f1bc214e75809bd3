"""What the pages print is what the project takes: commands, settings, messages, links. No process is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from pydantic import BaseModel

from checkback.commands import application
from checkback.landing.kafka_records import read_half, read_ops
from checkback.messages.half import parse_half
from checkback.messages.op import parse_ops
from checkback.observe.counts import PendingCount
from checkback.observe.logs import JsonFormatter
from checkback.observe.metrics import Metrics
from checkback.observe.observer import Observer
from checkback.observe.progress import Lag
from checkback.query.audit.promises import FINDINGS
from checkback.reconcile.records.actions import QUEUED, SEGMENT, Actions
from checkback.settings import Producer, Settings
from checkback.settings.loading import load
from docs.blocks import ROOT, Block, Page, anchor_of, blocks, pages, read_page
from docs.settings_page import names, subsections
from docs.shell import (
    NAMED,
    SYSTEM,
    Call,
    check_checkback,
    check_make,
    check_python,
    check_submit,
    check_system,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LANGUAGES = {"", "java", "js", "json", "mermaid", "python", "sh", "yaml"}
#: a folder of the checkpoint, and attributes of a check in Python
_NO_SETTINGS = {"reconcile.rebuilding", "check.message", "check.transaction_id"}
_NAMING = {".conf", ".ipynb", ".json", ".py", ".service", ".timer", ".yml"}
_CHECKS: dict[str, Callable[[Call], object]] = {
    "checkback": check_checkback,
    "make": check_make,
    "python": check_python,
    "spark-submit": check_submit,
    **dict.fromkeys(SYSTEM, check_system),
    "curl": lambda _: None,  # it is run: test_http.py
}
#: the test that runs a command of the pages: in docs/ and cluster/ as it is printed, elsewhere what it calls
RUN = {
    **dict.fromkeys(
        (f"checkback {name}" for name in ("audit", "maintain", "outages", "status")), "docs/test_run.py::test_answers"
    ),
    **dict.fromkeys(
        (f"checkback {name}" for name in ("tx decisions", "tx describe", "tx list", "topic list")),
        "docs/test_run.py::test_answers",
    ),
    **dict.fromkeys(
        (f"checkback tx {verb}" for verb in ("resolve", "resume", "cancel")), "docs/test_run.py::test_operator"
    ),
    **dict.fromkeys(
        (f"checkback group {verb}" for verb in ("list", "describe", "reconsume", "reset", "remove", "remove-topic")),
        "docs/test_run.py::test_consumer_commands",
    ),
    "checkback --help": "test_cli.py::test_help_groups_the_commands",
    "checkback clients": "gateway/rocketmq/test_python_client.py::test_credentials_of_a_group",
    "checkback config show": "docs/test_run.py::test_config",
    "checkback dashboard": "dashboard/test_run.py::test_ctrl_c_ends_it_with_130_and_without_a_word",
    "checkback backup": "maintain/test_backup.py::test_commands",
    "checkback restore": "maintain/test_backup.py::test_under_load",
    "checkback erase": "maintain/test_erasure.py::test_command_shows_then_erases_and_records_without_the_data",
    "checkback gateway": "docs/test_run.py::test_curl",
    "checkback land": "landing/test_file_query.py::test_trace_lands_once_and_fits_the_tables",
    "checkback push": "push/test_push_command.py::test_group_topic_url",
    "checkback rebuild": "application/test_rebuild.py::test_rebuilt_after_a_batch_that_broke_off",
    "checkback reconcile": "spark/test_signals.py::test_signal_to_the_group_leaves_spark_to_the_command",
    "checkback topic consume": "docs/test_run.py::test_consumer_commands",
    "checkback what-if": "docs/test_run.py::test_what_if",
    "curl": "docs/test_run.py::test_curl",
    "make run": "demo/test_bank.py::test_books_balance_after_a_run_with_kills",
    "spark-submit reconcile": "cluster/test_cluster.py::test_driver_is_killed_and_one_on_a_worker_goes_on",
}
#: why no test runs a command of the pages as it stands there
NOT_RUN = {
    "export": "the variables of the lines that follow",
    "install": "root's folders of the machine",
    "make notebook": "a server for the browser; its notebooks are run by tests/notebooks",
    "make simulate": "minutes of random histories; tests/simulator runs some",
    "make test": "the tests themselves",
    "make test-crash": "minutes of kill -9 under load; tests/crash runs a round",
    "make test-power": "minutes of power cuts; tests/power runs a few",
    "python": "changes of the code that the tests must notice, for an hour",
    "source": "the shell's own",
    "spark-submit audit": "fetches packages; its options are taken, and the job differs from reconcile's in its name",
    "spark-submit land": "needs a broker; landing/test_kafka_query.py runs what it calls",
    "systemctl": "root's services of the machine",
    "useradd": "root's users of the machine",
}


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    marked = [block for page in pages() for block in page.blocks if block.not_run is not None]
    with capsys.disabled():
        print(f"\n{len(marked)} code blocks of the pages are not run")
        for block in marked:
            print(f"  {block}: {block.not_run}")
    assert all(len(block.not_run or "") > 10 for block in marked)


def test_blocks_are_of_a_language_that_is_looked_at() -> None:
    assert {block.language for page in pages() for block in page.blocks} <= LANGUAGES


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_line_of_shell_would_be_taken(block: Block) -> None:
    for line in block.lines():
        call = Call.of(line)
        program = call.program
        assert program in _CHECKS, f"{line}: nobody knows {program}; mark the block: <!-- not run: REASON -->"
        _CHECKS[program](call)


def _named(call: Call) -> str:
    """A call by its program and, of one that has several, its command."""
    if call.program == "checkback":
        verbs = getattr(application().commands.get(call.arguments[0]), "commands", {})
        return " ".join([call.program, *call.arguments[: 2 if verbs else 1]])
    several = call.program in ("make", "spark-submit")
    jobs = (Path(word).stem for word in call.arguments if "jobs/" in word)
    word = next(jobs, "") if call.program == "spark-submit" else call.arguments[0]
    return f"{call.program} {word}" if several else call.program


def test_every_command_of_the_pages_is_run_or_says_why_not() -> None:
    """Its options are taken, besides (`test_line_of_shell_would_be_taken`)."""
    named = {_named(Call.of(line)) for block in blocks("sh") for line in block.lines()}
    assert named == RUN.keys() | NOT_RUN.keys()
    assert not RUN.keys() & NOT_RUN.keys()
    for place in RUN.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), place


def test_line_in_plain_text_would_be_taken() -> None:
    """As a line of cron."""
    for block in blocks(""):
        for line in block.lines():
            _, found, arguments = line.partition(".venv/bin/checkback ")
            if found:
                check_checkback(Call.of(f"checkback {arguments}"))


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_what_the_settings_take(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    assert set(content) <= set(Settings.model_fields), "no settings: mark it, or check it here"
    file = tmp_path / "page.yml"
    file.write_text(block.text, encoding="utf-8")
    loaded = load(file, environ=NAMED)
    assert set(loaded.origins.values()) >= {str(file)}


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_a_message_that_is_taken(block: Block) -> None:
    try:
        found = [json.loads(block.text)]
    except json.JSONDecodeError:
        found = [json.loads(line) for line in block.text.splitlines()]
    for fields in found:
        line = json.dumps(fields).encode()
        if block.heading == "Half messages and ops in Kafka":
            taken = read_half(1000, line, 0, 12, 1) if "real_topic" in fields else read_ops(1000, line, 0, 12, 1)
            assert [(one.queue_id, one.transaction_id) for one in taken] == [(1000, "order-4711")]
        elif "real_topic" in fields:
            assert parse_half(line).body == b'{"amount": 42}'
        elif "state" in fields:
            assert parse_ops(line)
        else:
            assert "event" in fields, "no message, no event: mark it, or check it here"


def _told() -> list[tuple[str, str]]:
    return sorted({(page.name, code) for page in pages() for code in page.code})


def test_settings_in_the_text_are_there() -> None:
    models = {name: field.annotation for name, field in Settings.model_fields.items()} | {"producers": Producer}
    for page, code in _told():
        match = re.fullmatch(r"(\w+)(?:\.\w+)?\.(\w+)(?:[=:] ?.*)?", code)
        if match is None or code in _NO_SETTINGS:
            continue
        model = models.get(match[1])
        if isinstance(model, type) and issubclass(model, BaseModel):
            known = {field.alias or name for name, field in model.model_fields.items()}
            known |= {key for _, below in subsections(model) for key in names(below)}
            assert match[2] in known, (page, code)


@pytest.mark.slow
def test_commands_and_targets_in_the_text_are_there() -> None:
    for page, code in _told():
        words = code.split()
        if len(words) < 2:
            continue
        if words[0] == "make":
            check_make(Call.of(f"make {words[1]}"))
        elif words[0] == "checkback" and words[1] != "COMMAND":
            _check_command(page, words[1:])


def _check_command(page: str, words: list[str]) -> None:
    """The command is there, and so are its options; what it needs besides may be left out."""
    command: Any = application()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, (page, words)
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= {*known, "--help"}, (page, words)


def test_extras_in_the_text_are_there() -> None:
    _, _, rest = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")
    extras = set(re.findall(r"^(\w+) = \[", rest.partition("\n[")[0], re.MULTILINE))
    told = {match[1] for _, code in _told() if (match := re.search(r"checkback\[([\w,]+)\]", code))}
    assert told
    assert {extra for names in told for extra in names.split(",")} <= extras


def _missing(page: Page) -> list[str]:
    known = {one.name: one for one in pages()}
    found = []
    for link in page.links:
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page.name).parent.joinpath(path).resolve() if path else ROOT / page.name
        name = target.relative_to(ROOT).as_posix()
        anchors = known[name].anchors if name in known else frozenset()
        if not target.exists() or (anchor and anchor not in anchors):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    assert _missing(page) == []


def test_pages_that_the_code_names_are_there() -> None:
    """As docs/NAME.md: in docstrings, errors, settings, notebooks and the changelog."""
    folders = ("conf", "examples", "lib", "notebooks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in _NAMING]
    named = {
        (match, path.relative_to(ROOT).as_posix())
        for path in [*files, ROOT / "CHANGELOG.md", ROOT / "Makefile"]
        for match in re.findall(r"\bdocs/[a-z-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert [(page, file) for page, file in sorted(named) if not (ROOT / page).exists()] == []


def test_every_page_is_in_the_readme() -> None:
    linked = {link for page in pages() if page.name == "README.md" for link in page.links}
    assert {page.name for page in pages() if page.name.startswith("docs/")} <= linked


def test_anchors_are_those_of_github() -> None:
    assert anchor_of("`--json`, and why") == "--json-and-why"
    assert anchor_of("topics/<topic>") == "topicstopic"


def test_block_knows_its_place_and_mark() -> None:
    page = read_page(
        "p.md",
        "## A b\n\n<!-- not run: it\ntakes long -->\n```sh\nls\n```\n"
        "\n1. x\n\n    ```sh\n    a \\\n    b  # c\n    ```\n",
    )
    assert [(block.line, block.heading, block.not_run) for block in page.blocks] == [
        (6, "A b", "it takes long"),
        (12, "A b", None),
    ]
    assert page.blocks[1].lines() == ["a b"]
    assert page.anchors == {"a-b"}


def test_metrics_of_the_page_are_those_that_are_served() -> None:
    families = {family.name for family in Metrics(Lag({}), PendingCount(), ()).registry.collect()}
    process = {name for name in families if name.startswith("checkback_process_")}
    served = families - process | {"checkback_process_*" for _ in process}
    page = next(page for page in pages() if page.name == "docs/runbook.md")
    told = {code.partition("{")[0].removesuffix("_total") for code in page.code if code.startswith("checkback_")}
    assert told - {"checkback_gateway_*", "checkback_consumer_*"} == served


def test_event_of_the_page_is_one_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    block = next(block for block in blocks("json") if block.page == "docs/runbook.md")
    with caplog.at_level("INFO", "checkback.events"):
        Observer().published(Actions(np.zeros(1, QUEUED), 5), 0, np.zeros(0, SEGMENT))
    assert list(json.loads(block.text)) == list(json.loads(JsonFormatter().format(caplog.records[0])))


def test_findings_of_the_audit_are_on_the_page() -> None:
    page = next(page for page in pages() if page.name == "docs/inspect.md")
    assert FINDINGS.keys() <= set(page.code)


def test_modules_in_the_text_are_there() -> None:
    """`reconcile/segment.py`, or its name alone."""
    files = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for top in ("lib", "tests", "jobs")
        for path in ROOT.glob(f"{top}/**/*.py")
    ]
    for page, code in _told():
        if re.fullmatch(r"[\w/]+\.py", code) and page != "CHANGELOG.md":
            assert any(file.endswith(f"/{code}") for file in files), (page, code)
