"""What an error of a check means: an endpoint that answers with a status is not silent."""

from __future__ import annotations

import duckdb
import pytest

from checkback.check.wire import REFUSALS
from checkback.query.check_results import hint, hint_sql, no_answer, no_answer_sql

_SAID: dict[str | None, str] = {
    None: "no endpoint answers",
    "connection refused": "no endpoint answers: connection refused",
    "status 404": "the endpoint says status 404: is its path right (producers.pay.endpoints)?",
    "status 405": "the endpoint says status 405: is its path right (producers.pay.endpoints)?",
    "status 401": "the endpoint says status 401: is the secret right (producers.pay.secret)?",
    "status 403": "the endpoint says status 403: is it the endpoint of this group (producers.pay.endpoints)?",
    "status 500": "the endpoint says status 500",
    "redirect 301": "the endpoint says redirect 301",
    "status unknown": "no endpoint answers: status unknown",
    "status 204: not JSON: empty": "the endpoint says status 204: not JSON: empty",
    "not JSON: HTML or XML": "the answer is not valid: not JSON: HTML or XML",
    **{error: f"the answer is not valid: {error}" for error in REFUSALS},
}


def test_group_without_a_secret_is_not_asked_whether_it_is_right() -> None:
    said = ": the endpoint wants signed checks, and no secret is set (producers.pay.secret)"
    assert hint("status 401", "pay", signed=False) == said
    with duckdb.connect() as database:
        row = database.sql("SELECT 'status 401' AS error, 'pay' AS name")
        assert row.project(hint_sql("error", "name", "FALSE").format()).fetchall() == [(said,)]


@pytest.mark.parametrize("error", _SAID)
def test_the_words_are_the_same_in_python_and_sql(error: str | None) -> None:
    assert no_answer(error) + hint(error, "pay") == _SAID[error]
    sql = f"{no_answer_sql('error')} || {hint_sql('error', 'name')}".format()
    with duckdb.connect() as database:
        row = database.sql("SELECT ?::VARCHAR AS error, 'pay' AS name", params=[error])
        assert row.project(sql).fetchall() == [(_SAID[error],)]
