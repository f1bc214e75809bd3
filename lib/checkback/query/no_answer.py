"""What a check without an answer means, in words: in Python, and the same in SQL. Pure.

An endpoint that says 404 does answer; whoever reads it is told which setting to look at.
"""

from __future__ import annotations

import re

from checkback.check.wire import REFUSALS

_STATUS = "^(status|redirect) [0-9]{1,9}(: |$)"
_PATH = ("is its path right", "endpoints")
#: the error of an endpoint that takes signed checks only, and not these
_UNSIGNED = "status 401"
#: by error: what to ask, and the setting of the group that it is about
_HINTS = {
    "status 403": ("is it the endpoint of this group", "endpoints"),
    "status 404": _PATH,
    "status 405": _PATH,
}
_SIGNED = ("is the secret right", "?")
_SECRETLESS = ("the endpoint wants signed checks, and no secret is set", "")
_REFUSAL = f"^({'|'.join(REFUSALS)})"
#: SQL: error of a try by which the endpoint shows that it is healthy, though it has not answered (`check.wire`)
REFUSED = (
    f"coalesce(regexp_extract(error, '{_REFUSAL}', 0) <> '', FALSE)"
    " OR coalesce(TRY_CAST(regexp_extract(error, '^(status|redirect) ([0-9]{{1,9}})(: |$)', 2)"
    " AS BIGINT) BETWEEN 0 AND 499 AND error <> 'status 429', FALSE)"
)


def no_answer(error: str | None) -> str:
    """What the error of a check's last real try tells; None = none is known."""
    if error is None:
        return "no endpoint answers"
    if re.match(_STATUS, error):
        return f"the endpoint says {error}"
    return f"the answer is not valid: {error}" if re.match(_REFUSAL, error) else f"no endpoint answers: {error}"


def hint(error: str | None, group: str | None, signed: bool = True) -> str:
    """What to look at, to be appended; may be empty. ``signed``: the group has a secret."""
    if error == _UNSIGNED:
        said, end = _SIGNED if signed else _SECRETLESS
        return f": {said} (producers.{group or ''}.secret){end}"
    asked = _HINTS.get(error or "")
    return "" if asked is None else f": {asked[0]} (producers.{group or ''}.{asked[1]})?"


def no_answer_sql(error: str) -> str:
    """SQL: `no_answer` of a column; braces are doubled, as in all questions."""
    return f"""CASE
        WHEN {error} IS NULL THEN 'no endpoint answers'
        WHEN regexp_extract({error}, '{_STATUS.replace("{", "{{").replace("}", "}}")}', 0) <> ''
            THEN 'the endpoint says ' || {error}
        WHEN regexp_extract({error}, '{_REFUSAL}', 0) <> '' THEN 'the answer is not valid: ' || {error}
        ELSE 'no endpoint answers: ' || {error}
    END"""


def hint_sql(error: str, group: str, signed: str = "TRUE") -> str:
    """SQL: `hint` of columns; ``signed``: a condition."""
    words = " ".join(
        f"WHEN {error} = '{_UNSIGNED}' AND {where} "
        f"THEN ': {asked} (producers.' || coalesce({group}, '') || '.secret){end}'"
        for where, (asked, end) in ((signed, _SIGNED), ("TRUE", _SECRETLESS))
    )
    cases = " ".join(
        f"WHEN {error} = '{said}' THEN ': {asked} (producers.' || coalesce({group}, '') || '.{setting})?'"
        for said, (asked, setting) in _HINTS.items()
    )
    return f"CASE {words} {cases} ELSE '' END"
