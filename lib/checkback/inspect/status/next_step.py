"""What somebody on call can do about a group that is stuck, in a sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.inspect.no_answer import hint

if TYPE_CHECKING:
    from collections.abc import Mapping

_AGAIN = "start reconcile again: it reads its settings when it starts"


def next_step(row: Mapping[str, Any]) -> str | None:
    """What to do about a row of `inspect.stuck_groups`; None = its outcomes do not tell."""
    name = row["producer_group"] or ""
    if (row["unknown_share"] or 0) >= 1:
        return "ask its team what became of these transactions, or end them by hand (`checkback tx resolve`)"
    if (row["no_answer_share"] or 0) < 1:
        return None
    if not row["endpoints"]:
        return f"set producers.{name}.endpoints, and {_AGAIN}"
    if hint(row["last_error"], name):
        return f"mend the endpoint, or its settings in producers.{name}: then {_AGAIN}"
    return "ask its team whether the endpoint is up: once it answers, checks go on by themselves"
