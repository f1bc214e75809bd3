"""What an operator does in the browser: previewed, then confirmed; by the same code as the commands."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from checkback.consumer import reconsume_command
from checkback.consumer.reconsume import AGAIN
from checkback.dashboard.pages import ROWS, link
from checkback.errors import SettingsError
from checkback.operate.action import act, look
from checkback.operate.cancel import cancelling
from checkback.operate.command import Request as Operation
from checkback.operate.operations import CANCEL
from checkback.operate.preview import consequence, missing, outcome_text, transaction_card
from checkback.operate.resolve import resolving
from checkback.operate.resume import resuming
from checkback.operate.tables import open_tables
from checkback.storage.queue_owners import QueueOwner, log_of_half, refuse_foreign
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from checkback.consumer.reconsume import Judged
    from checkback.dashboard.pages import Pages

#: what a form asks for -> the state of the operator's op; None = the message is resumed
ACTIONS: dict[str, str | None] = {"commit": "COMMIT", "rollback": "ROLLBACK", "cancel": CANCEL, "resume": None}
RECONSUME = "reconsume"
#: dead letters that a preview lists
_LISTED = 500


@dataclass(frozen=True)
class Preview:
    """What an action would do, or has done. ``rows``: its messages, if it has several, in SHOWN of `reconsume`.

    ``seen``: names what is shown, if it may change until it is confirmed; ``nothing``: there is nothing to do.
    """

    action: str
    card: list[tuple[str, str]]
    follows: str
    done: bool = False
    rows: tuple[tuple[str, ...], ...] = ()
    seen: str = ""
    nothing: bool = False


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
        "columns": reconsume_command.SHOWN,
        "form": kept | ({"seen": found.seen} if found.seen else {}),
        "back": _back(form),
    }
    return pages.answer(request, "action.html", data)


def _operate(pages: Pages, form: Mapping[str, str], name: str, do: bool) -> Preview:
    settings, state = pages.settings, ACTIONS[name]
    number = {key: _number(form, key) for key in ("queue_id", "queue_offset")}
    asked = Operation.of(
        form.get("transaction_id", ""),
        form.get("group") or None,
        number["queue_id"],
        number["queue_offset"],
        form.get("actor", ""),
        form.get("reason", ""),
        state,
    )
    queue = settings.operator.queue
    if state is None:
        action = resuming(queue, asked.signed, _now)
    elif state == CANCEL:
        action = cancelling(asked.signed, _now)
    else:
        action = resolving(state, asked.signed, _now)
    with open_tables(settings) as store:
        if state is None:
            refuse_foreign(log_of_half(Tables.of(settings.storage)), [queue], QueueOwner.OPERATOR, "operator.queue")
        view = look(store, asked.asked, queue, action)
        card = transaction_card(view.transaction, _now())
        if do:
            return Preview(action.name, card, outcome_text(act(store, asked.asked, queue, action)), done=True)
        what = consequence(action.name, view.transaction, queue) if view.done is None else missing(view.done)
        return Preview(action.name, card, what)


def _reconsume(pages: Pages, form: Mapping[str, str], do: bool) -> Preview:
    tables = Tables.of(pages.settings.storage)
    asked = reconsume_command.Request.of(
        form.get("group", ""),
        form.get("topic") or None,
        _lines(form.get("transaction_id", "")),
        form.get("everything") == "yes",
        form.get("actor", ""),
        form.get("reason", ""),
    )
    chosen = reconsume_command.chosen_of(asked, reconsume_command.look(tables, asked))
    card = [("consumer group", asked.group), ("topic", asked.topic or "all"), ("dead letters", str(len(chosen)))]
    seen = _seen(chosen)
    if do and form.get("seen") == seen:
        done = reconsume_command.act(tables, asked, chosen[: reconsume_command.MOST], round(time.time() * 1000))
        rows = tuple(map(reconsume_command.cells, done[:_LISTED]))
        return Preview(RECONSUME, card, reconsume_command.outcome(asked, done, len(chosen)), done=True, rows=rows)
    follows = reconsume_command.follows(asked, len(chosen))
    if do:
        follows = f"Not done: these are other dead letters than those shown before. {follows}"
    if len(chosen) > _LISTED:
        follows += f" The first {_LISTED} are listed; the command lists all with --json."
    rows = tuple(map(reconsume_command.cells, chosen[:_LISTED]))
    return Preview(RECONSUME, card, follows, rows=rows, seen=seen, nothing=not chosen)


def _lines(text: str) -> list[str]:
    """The lines of a text field, as they are: a transaction id may have spaces anywhere. Empty ones are no ids."""
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]


def _seen(chosen: Sequence[Judged]) -> str:
    places = ((one.buried.queue.topic, one.buried.place, one.buried.dead_at) for one in chosen)
    return hashlib.sha256(repr([*places]).encode("utf-8", "surrogatepass")).hexdigest()


def dead_letters(tables: Tables, group: str) -> list[dict[str, Any]]:
    """The dead letters of a consumer group that were given up last, the last first; ``fate``: what became of each."""
    return [
        {
            "transaction_id": one.buried.transaction_id,
            "queue_id": one.buried.half_queue_id,
            "queue_offset": one.buried.half_queue_offset,
            "topic": one.buried.queue.topic,
            "reconsume_times": one.buried.times,
            "reason": one.buried.reason,
            "dead_at": one.buried.dead_at,
            # AGAIN is what reconsume would do.
            "fate": "given up" if one.fate == AGAIN else one.fate,
        }
        for one in reversed(reconsume_command.dead_letters(tables, group)[-ROWS:])
    ]


def _number(form: Mapping[str, str], name: str) -> int | None:
    said = form.get(name, "").strip()
    if not said:
        return None
    if not said.isdecimal() or len(said) > 19:
        raise SettingsError("is no whole number", name)
    return int(said)


def _back(form: Mapping[str, str]) -> str:
    if form.get("action") == RECONSUME:
        return "/consumers"
    queue, offset = form.get("queue_id", ""), form.get("queue_offset", "")
    if not (queue.isdecimal() and offset.isdecimal()):
        return "/"
    names = {"transaction_id": form.get("transaction_id"), "producer_group": form.get("group")}
    return link({"queue_id": queue, "queue_offset": offset} | names)


def _now() -> datetime:
    return datetime.now(timezone.utc)
