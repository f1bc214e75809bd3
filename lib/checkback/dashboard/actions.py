"""What an operator does in the browser: previewed, then confirmed; by the same code as the commands."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from checkback.consumer import dead_letter_requests
from checkback.dashboard.pages import ROWS, link, of_field
from checkback.dashboard.pages import time as shown_time
from checkback.dashboard.transactions import fate_of, fate_of_letter
from checkback.errors import CheckbackError, SettingsError, printable
from checkback.messages.durations import span
from checkback.operate.action import act, look
from checkback.operate.operations import CANCEL
from checkback.operate.preview import follows, outcome_text, transaction_card
from checkback.operate.request import Request as Operation
from checkback.operate.request import tables_for
from checkback.query.answers import records
from checkback.query.check_results import hint, no_answer
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.consumer.reconsume import Judged
    from checkback.dashboard.pages import Pages
    from checkback.operate.transaction import Transaction

#: what a form asks for -> the state of the operator's op; None = the message is resumed
ACTIONS: dict[str, str | None] = {"commit": "COMMIT", "rollback": "ROLLBACK", "cancel": CANCEL, "resume": None}
RECONSUME = "reconsume"
#: what a page calls them
TITLES = {
    "commit": "Commit",
    "rollback": "Roll back",
    "cancel": "Cancel",
    "resume": "Resume",
    RECONSUME: "Consume again",
}
#: options of the commands -> what a page calls their values
_FIELDS = {"--actor": "Who", "--reason": "Why", "TX": "the transaction"}
#: dead letters that a preview lists
_LISTED = 500


@dataclass(frozen=True)
class Preview:
    """What an action would do, or has done. ``rows``: its messages, if it has several, in SHOWN of `reconsume`.

    ``seen``: names what is shown, if it may change until it is confirmed; ``nothing``: there is nothing to do.
    ``warning``: why it may have no effect; ``new``: the half message that was made, as a row that `link` takes.
    """

    action: str
    card: list[tuple[str, str]]
    follows: str
    done: bool = False
    rows: tuple[tuple[str, ...], ...] = ()
    seen: str = ""
    nothing: bool = False
    warning: str = ""
    new: Mapping[str, Any] | None = None


def handle(pages: Pages, request: Request, form: Mapping[str, str]) -> Response:
    """Show what the action would do; with ``confirmed`` do it. Raises SettingsError, RefusedError, StorageError."""
    name, do = form.get("action", ""), form.get("confirmed") == "yes"
    if name == RECONSUME:
        found = _reconsume(pages, form, do)
    elif name in ACTIONS:
        found = _operate(pages, form, name, do)
    else:
        raise SettingsError("there is no such action", "action", f"one of {', '.join([*ACTIONS, RECONSUME])}")
    kept = {key: value for key, value in form.items() if key not in ("csrf", "confirmed", "seen")}
    data: dict[str, Any] = {
        "preview": found.__dict__,
        "title": TITLES[name],
        "columns": dead_letter_requests.SHOWN,
        "form": kept | ({"seen": found.seen} if found.seen else {}),
        "back": _back(form),
    }
    return pages.answer(request, "action.html", data)


def refused(pages: Pages, request: Request, form: Mapping[str, str], error: CheckbackError) -> Response:
    """Why nothing was done; the form as it was, for correction, or what may be done instead."""
    name, status = form.get("action", ""), 400 if isinstance(error, SettingsError) else 409
    half, acts = _instead(pages, form) if name in ACTIONS else (None, ())
    kept = {key: value for key, value in form.items() if key not in ("csrf", "confirmed", "seen", "action")}
    data = {
        "what": printable(_said(error)),
        "status": status,
        "title": TITLES.get(name, "Action"),
        "again": name if status == 400 and name in TITLES else None,
        "form": kept,
        "half": half,
        "acts": acts,
        "back": _back(form),
    }
    return pages.answer(request, "refused.html", data, status)


def _instead(pages: Pages, form: Mapping[str, str]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The half message that a form names, and what may be done with it."""
    try:
        place = _number(form, "queue_id"), _number(form, "queue_offset")
        if None in place:
            return None, ()
        with pages.asking() as answers:
            found = records(answers.transactions(place=(place[0] or 0, place[1] or 0)))
            half = next((one for one in found if one["transaction_id"] == _name(form, "transaction_id")), None)
            return half, () if half is None else fate_of(answers, None, half).acts
    except CheckbackError:  # what is shown is why the action was refused
        return None, ()


def _said(error: CheckbackError) -> str:
    """An error of a command, without its options."""
    where, fix = _FIELDS.get(error.where, error.where), error.fix
    if where.startswith("--transaction-id "):
        where = f"dead letter {where.removeprefix('--transaction-id ')}"
    if fix.startswith(("see `checkback ", "`checkback tx list ", "name one: --")):
        fix = ""
    return str(CheckbackError(error.what, where, fix))


def _operate(pages: Pages, form: Mapping[str, str], name: str, do: bool) -> Preview:
    settings, state = pages.settings, ACTIONS[name]
    number = {key: _number(form, key) for key in ("queue_id", "queue_offset")}
    asked = Operation.of(
        _name(form, "transaction_id"),
        _name(form, "group") or None,
        number["queue_id"],
        number["queue_offset"],
        form.get("actor", ""),
        form.get("reason", ""),
        state,
    )
    queue = settings.operator.queue
    action = asked.action(queue, _now)
    with tables_for(settings, asked) as store:
        view = look(store, asked.asked, queue, action, confirmed=do)
        now = _now()
        age = span(view.transaction.age_s(now))
        card = [(name, age if name == "age" else value) for name, value in transaction_card(view.transaction, now)]
        if do:
            outcome = act(store, asked.asked, queue, action)
            at, key = outcome.operation.new_place, outcome.transaction.key
            names = {"transaction_id": key.transaction_id, "producer_group": key.producer_group}
            new = None if at is None else {"queue_id": at.queue_id, "queue_offset": at.queue_offset} | names
            return Preview(action.name, card, outcome_text(outcome), done=True, new=new)
        what = follows(view, action.name, queue, now)
        in_vain = "" if state is not None or view.transaction.committed else _doubt(pages, view.transaction)
        return Preview(action.name, card, what, warning=in_vain)


def _doubt(pages: Pages, transaction: Transaction) -> str:
    """Why a message that is resumed now may be discarded again: what its group's checks brought last; "" = nothing."""
    group = transaction.producer_group
    with pages.asking() as answers:
        last = answers.last_words(group)
    if last["silent_since"] is not None:
        why = f"{no_answer(last['last_error'])}{hint(last['last_error'], group)}"
        return (
            f"The group does not answer since {shown_time(last['silent_since'])} UTC: {why} "
            "If that lasts, the message is discarded again."
        )
    if last["last_answer"] == "UNKNOWN":
        return (
            f"The group answered UNKNOWN last, at {shown_time(last['last_answer_at'])} UTC. "
            "If that lasts, the message is discarded again: ask its team, or resolve it by hand."
        )
    return ""


def _reconsume(pages: Pages, form: Mapping[str, str], do: bool) -> Preview:
    tables = Tables.of(pages.settings.storage)
    ids = _lines(form.get("transaction_id", ""))
    if bool(ids) == (form.get("everything") == "yes"):
        raise SettingsError("tick some, or all of the group's", "dead letters")
    asked = dead_letter_requests.Request.of(
        _name(form, "group"),
        _name(form, "topic") or None,
        ids,
        form.get("everything") == "yes",
        form.get("actor", ""),
        form.get("reason", ""),
    )
    chosen = dead_letter_requests.chosen_of(asked, dead_letter_requests.look(tables, asked))
    which = f"{len(chosen)}, by transaction id" if ids else f"{len(chosen)}, all of the group"
    card = [("consumer group", asked.group), ("topic", asked.topic or ""), ("dead letters", which)]
    card = [row for row in card if row[1]]
    seen = _seen(chosen)
    if do and form.get("seen") == seen:
        done = dead_letter_requests.act(tables, asked, chosen[: dead_letter_requests.MOST], round(time.time() * 1000))
        rows = tuple(map(_cells, done[:_LISTED]))
        return Preview(RECONSUME, card, dead_letter_requests.outcome(asked, done, len(chosen)), done=True, rows=rows)
    follows = dead_letter_requests.follows(asked, chosen)
    if do:
        follows = f"Not done: these are other dead letters than those shown before. {follows}"
    if len(chosen) > _LISTED:
        follows += f" The first {_LISTED} are listed; the command lists all with -o json."
    rows = tuple(map(_cells, chosen[:_LISTED]))
    return Preview(RECONSUME, card, follows, rows=rows, seen=seen, nothing=not chosen)


def _cells(one: Judged) -> tuple[str, ...]:
    """As `dead_letter_requests.cells`, its time as on all pages."""
    return tuple(
        shown_time(one.buried.dead_at) if name == "given up" else cell
        for name, cell in zip(dead_letter_requests.SHOWN, dead_letter_requests.cells(one), strict=True)
    )


def _lines(text: str) -> list[str]:
    """The names in a field's lines, as they are: a transaction id may have spaces anywhere. An empty one is none."""
    return [of_field(line) for line in text.replace("\r\n", "\n").split("\n") if line]


def _seen(chosen: Sequence[Judged]) -> str:
    places = ((one.buried.queue.topic, one.buried.place, one.buried.dead_at) for one in chosen)
    return hashlib.sha256(repr([*places]).encode("utf-8", "surrogatepass")).hexdigest()


def dead_letters(tables: Tables, group: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The dead letters of a consumer group that were given up last, the last first; ``fate``: what became of each.

    And of all of them how many have each fate: messages, of which some may have been given up several times.
    """
    found = dead_letter_requests.dead_letters(tables, group)
    fates = Counter(fate_of_letter(one) for one in found)
    listed = [
        {
            "transaction_id": one.buried.transaction_id,
            "queue_id": one.buried.half_queue_id,
            "queue_offset": one.buried.half_queue_offset,
            "producer_group": one.buried.producer_group,
            "topic": one.buried.queue.topic,
            "reconsume_times": one.buried.times,
            "reason": one.buried.reason,
            "dead_at": one.buried.dead_at,
            "fate": fate_of_letter(one),
        }
        for one in reversed(found[-ROWS:])
    ]
    return listed, dict(fates)


def _name(form: Mapping[str, str], field: str) -> str:
    return of_field(form.get(field, ""))


def _number(form: Mapping[str, str], name: str) -> int | None:
    said = form.get(name, "").strip()
    if not said:
        return None
    if not said.isdecimal() or len(said) > 19:
        raise SettingsError("is no whole number", name)
    return int(said)


def _back(form: Mapping[str, str]) -> str:
    queue, offset = form.get("queue_id", ""), form.get("queue_offset", "")
    again = form.get("action") == RECONSUME
    if not (queue.isdecimal() and offset.isdecimal()):
        return "/consumers" if again else "/"
    names = {"transaction_id": _name(form, "transaction_id"), "producer_group": "" if again else _name(form, "group")}
    return link({"queue_id": queue, "queue_offset": offset} | names)


def _now() -> datetime:
    return datetime.now(timezone.utc)
