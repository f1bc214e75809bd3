"""A Schema Registry that lags, lies or is slow: which faults are the body's, and how long a query waits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from checkback.bodies import registry as module
from checkback.bodies.decoder import BodyError
from checkback.bodies.registry import Registry
from checkback.errors import StorageError
from support.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """Seconds that pass when they are slept, or told to."""

    now = 1000.0

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "_clock", lambda: clock.now)
    monkeypatch.setattr(module, "_sleep", clock.sleep)
    monkeypatch.setattr(module, "_unknown", {})
    module._misses.clear()
    return clock


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


@pytest.mark.parametrize("error_code", [None, 40401, 40402, 404])
def test_a_404_of_something_else_is_no_unknown_schema(
    server: SchemaRegistry, clock: Clock, error_code: int | None
) -> None:
    number = server.register("t-value", "int")
    server.status, server.error_code = 404, error_code
    with pytest.raises(StorageError, match="answered what is not of its API"):
        Registry(server.url).schema(number)
    server.status = None
    assert Registry(server.url).schema(number).text == "int"


def test_an_unknown_subject_is_told_by_its_own_code(server: SchemaRegistry) -> None:
    with pytest.raises(StorageError, match="the registry has no subject t-value"):
        Registry(server.url).latest("t-value")
    server.status, server.error_code = 404, 40403
    with pytest.raises(StorageError, match="answered what is not of its API"):
        Registry(server.url).latest("t-value")


def test_an_unknown_id_is_asked_for_again_after_seconds(server: SchemaRegistry, clock: Clock) -> None:
    registry = Registry(server.url)
    for _ in range(3):
        with pytest.raises(BodyError, match="names schema 100, which the registry does not have"):
            registry.schema(100)
    assert server.asked == ["/schemas/ids/100"]
    assert server.register("t-value", "int") == 100
    clock.now += 6
    assert registry.schema(100).text == "int"


def test_bodies_that_name_any_ids_ask_for_a_hundred_a_second(server: SchemaRegistry, clock: Clock) -> None:
    known = server.register("t-value", "int")
    start = clock.now
    for number in range(1000, 1250):
        with pytest.raises(BodyError):
            Registry(server.url).schema(number)
    assert clock.now - start == 2
    assert Registry(server.url).schema(known).text == "int"


def test_a_redirect_is_not_followed(server: SchemaRegistry) -> None:
    server.status = 302
    with pytest.raises(StorageError, match=r"answered 302; set schema_registry to the URL that it leads to"):
        Registry(server.url).schema(1)
    assert len(server.asked) == 1


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DEADLINE", 0.3)
    server.drips = threading.Event()
    try:
        with pytest.raises(StorageError, match=r"/schemas/ids/1: the schema registry gave no whole answer in 0.3 s"):
            Registry(server.url).schema(1)
    finally:
        server.drips.set()
