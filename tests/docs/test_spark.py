"""What the pages print and Spark must run: on one set of small tables, each in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.cli import main
from checkback.settings import Settings
from docs.blocks import ROOT, blocks
from docs.shell import Call
from operate.house import House

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

#: `audit` is run by the Python of its page. The others' options are held to the command line in test_snippets.py.
_LOOKS = ("lineage", "pending", "status")


def _calls() -> dict[str, Call]:
    """The first call of each command that looks, as the pages have it."""
    calls = [Call.of(line) for block in blocks("sh") for line in block.lines()]
    found: dict[str, Call] = {}
    for call in calls:
        if call.program == "checkback" and call.arguments[0] in _LOOKS:
            found.setdefault(call.arguments[0], call)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with a pending transaction, one that was asked, and a discarded one."""
    place = tmp_path_factory.mktemp("docs")
    house = House(place)
    house.check(house.half(11, "order-4711", check_immunity_s=0), 1, "NO_ANSWER", "connection refused")
    discarded = house.half(12, "order-4712")
    house.decide(discarded, "DISCARD", "checkback")
    return place


def test_python_and_commands(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One test: they share the session and the tables, and none of them changes anything."""
    monkeypatch.chdir(ROOT)
    settings = Settings.model_validate({"storage": {"root": str(root)}})
    for block in filter(lambda block: block.needs_spark, blocks("python")):
        code = compile(block.text, str(ROOT / block.page), "exec")
        exec(code, {"spark": spark, "settings": settings})  # noqa: S102 - the page's own code
    for name, call in _calls().items():
        capsys.readouterr()
        assert main([*call.arguments, "--set", f"storage.root={root}"]) == 0, name
        said = capsys.readouterr()
        assert said.out, name
        assert not said.err, name
