"""What the SDK loads, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HEAVY = "{'pyspark', 'pandas', 'pyarrow', 'deltalake', 'delta', 'numpy'}"


def loaded(code: str, names: str) -> str:
    code = f"import sys; {code}; print(sorted({names} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import checkback.producer",
        "from checkback.producer import *",
        "from checkback.producer import Barrier, idempotent",
        "from checkback.producer import AsyncTransactionProducer, CheckServer, check_app; import uvicorn",
    ],
)
def test_sdk_loads_no_spark(code: str) -> None:
    assert loaded(code, HEAVY) == "[]\n"


@pytest.mark.slow
def test_sdk_loads_extras_when_they_are_used() -> None:
    names = "{'uvicorn', 'sqlalchemy', 'starlette', 'pydantic'}"
    assert loaded("import checkback.producer", names) == "[]\n"
    assert loaded("from checkback.producer import Barrier", names) == "['sqlalchemy']\n"


@pytest.mark.parametrize(
    ("missing", "use", "extra"),
    [
        ("uvicorn", "p.CheckServer(None)", "producer"),
        ("sqlalchemy", "p.Barrier", "barrier"),
        ("sqlalchemy", "p.idempotent", "barrier"),
        ("sqlalchemy", "import checkback.consumer; checkback.consumer.SqlPositions", "consumer"),
    ],
)
def test_extra_that_is_missing_is_named_in_one_line(missing: str, use: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
import checkback.producer as p
from checkback.errors import CheckbackError
try:
    {use}
except CheckbackError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{missing} is missing; install checkback[{extra}]" in run.stdout
