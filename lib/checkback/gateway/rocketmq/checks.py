"""Checks: the POST of `reconcile` becomes a command on a client's stream, the client's EndTransaction its answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from checkback.gateway.http.middleware import reply_of
from checkback.gateway.problems import Problem
from checkback.gateway.rocketmq.codes import IDENTITY, MD5, MessageType
from checkback.gateway.rocketmq.interface import message
from checkback.gateway.rocketmq.transaction_ids import Half, sent_as
from checkback.messages.half import CLIENT_ID, SHARDING_KEY
from checkback.messages.trace_context import TRACEPARENT
from checkback.settings.secrets import secrets_of
from checkback.signature import Verifier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.gateway.http.middleware import Reply
    from checkback.gateway.rocketmq.streams import Stream, Streams
    from checkback.gateway.rocketmq.transaction_ids import TransactionIds
    from checkback.settings import Producer

#: Shares of check.timeout: when `reconcile` gets its answer, in any case; and when a second client is asked.
_WHOLE, _FIRST = 0.8, 0.4
_FORGED = "the check's signature is not valid"
_log = logging.getLogger("checkback.gateway")


class Check(msgspec.Struct):
    """The request (docs/checks.md)."""

    transaction_id: str
    producer_group: str
    real_topic: str
    queue_id: int
    queue_offset: int
    check_times: int = 1
    born_timestamp: int | None = None
    body: bytes | None = None
    tags: str | None = None
    keys: str | None = None
    properties: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def half(self) -> Half:
        """The half message that it is about."""
        return Half(self.queue_id, self.queue_offset, self.producer_group, self.transaction_id)

    @property
    def stated(self) -> Mapping[str, str]:
        """The message's properties."""
        return self.properties if isinstance(self.properties, dict) else {}


class CheckBridge:
    """Asks clients for `reconcile`. Belongs to one event loop."""

    def __init__(
        self,
        streams: Streams,
        ids: TransactionIds,
        producers: Mapping[str, Producer],
        timeout_s: float,
    ) -> None:
        """``timeout_s``: check.timeout. Raises SettingsError."""
        self._streams, self._ids = streams, ids
        self._verifiers = secrets_of(
            producers, lambda secrets: {group: Verifier(secrets[group], group) for group in secrets}
        )
        self._needs_secret = any(producer.token is not None for producer in producers.values())
        self._timeout_s = timeout_s
        #: By the whole half message: who makes up a transaction id of his own may know another's place.
        self._waiting: dict[Half, list[asyncio.Future[str]]] = {}
        self._decoder = msgspec.json.Decoder(Check)

    async def reply(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """The reply to a check: 200 with the client's state, or why there is none."""
        try:
            check = self._decoder.decode(body)
        except msgspec.MsgspecError:
            return reply_of(Problem("malformed", "not a check (docs/checks.md)"))
        refused = self._refused(check.producer_group, body, headers)
        if refused is None and check.properties is msgspec.UNSET:
            refused = Problem("unfit", f"the check has no message: set producers.{check.producer_group}.include_body")
            _log.warning("a check was refused: %s", refused.detail)
        answer = refused or await self._ask(check)
        status, content, kind, more = reply_of(answer)
        if isinstance(answer, Problem) and answer.code == "not_connected":
            more = {**(more or {}), "checkback-delivered": "false"}
        return status, content, kind, more

    def ended(self, half: Half, state: str) -> None:
        """A client that may has ended the transaction with this state, or said UNKNOWN."""
        for future in self._waiting.get(half, ()):
            if not future.done():
                future.set_result(state)

    def _refused(self, group: str, body: bytes, headers: Mapping[str, str]) -> Problem | None:
        """Why the sender is not `reconcile`: it signs with the group's secret."""
        verifier = self._verifiers.current.get(group)
        if verifier is None:
            what = "checks of clients that authenticate must be signed: give the group a secret"
            return Problem("unauthorized", what) if self._needs_secret else None
        return None if verifier.is_genuine(headers, body) else Problem("unauthorized", _FORGED)

    async def _ask(self, check: Check) -> dict[str, Any] | Problem:
        half = check.half
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(half, []).append(future)
        try:
            state = await self._asked(check, future)
        finally:
            self._waiting[half].remove(future)
            if not self._waiting[half]:
                del self._waiting[half]
        if isinstance(state, Problem):
            return state
        named = {"queue_id": check.queue_id, "queue_offset": check.queue_offset}
        return {"transaction_id": check.transaction_id, "state": state, **named}

    async def _asked(self, check: Check, future: asyncio.Future[str]) -> str | Problem:
        """The state that a client answers. Two clients are asked at most: a dead one's stream may look alive."""
        sent, clock = False, asyncio.get_running_loop().time
        end = clock() + self._timeout_s * _WHOLE
        streams = self._streams.to_ask(check.producer_group, check.real_topic, check.stated.get(CLIENT_ID))
        command = message(
            "TelemetryCommand", recover_orphaned_transaction_command=command_of(check, self._ids) if streams else None
        )
        for number, stream in enumerate(streams):
            turn = min(end, clock() + self._timeout_s * _FIRST)
            if not await self._send(stream, command, turn - clock()):
                continue
            if sent or number + 1 == len(streams):
                turn = end
            sent = True
            await asyncio.wait([future], timeout=max(0, turn - clock()))
            if future.done():
                return future.result()
            if clock() >= end:
                break
        if not sent:
            return Problem("not_connected", "no client of the group is connected to this gateway")
        return Problem("not_answered", "the group's client has been asked and has not answered in time")

    async def _send(self, stream: Stream, command: Any, timeout_s: float) -> bool:
        """False: the stream is gone, or broken. A client that does not read so soon is there, and may get it later."""
        if not self._streams.turn(stream):
            return False
        try:
            await asyncio.wait_for(stream.send(command), timeout_s)
        except asyncio.TimeoutError:
            _log.debug("a client is slow to read its check")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one client's stream, others may answer
            _log.debug("a check could not be sent: %s", type(error).__name__)
            self._streams.remove(stream)
            return False
        return True


def command_of(check: Check, ids: TransactionIds) -> Any:
    """RecoverOrphanedTransactionCommand of a check, with what a RocketMQ server states in it."""
    properties = dict(check.stated)
    group = properties.pop(SHARDING_KEY, "")
    properties.pop(CLIENT_ID, None)
    properties["__transactionId__"] = sent_as(check.transaction_id)
    properties["TRANSACTION_CHECK_TIMES"] = str(check.check_times)
    body = check.body or b""
    born = check.born_timestamp or 0
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    context = {"trace_context": properties[TRACEPARENT]} if TRACEPARENT in properties else {}
    asked = message(
        "Message",
        topic=message("Resource", name=check.real_topic),
        user_properties=[message("Property", key=key, value=value) for key, value in properties.items()],
        body=body,
        system_properties=message(
            "SystemProperties",
            tag=check.tags or "",
            keys=(check.keys or "").split(),
            message_id=sent_as(check.transaction_id),
            body_digest=message("Digest", type=MD5, checksum=digest),
            body_encoding=IDENTITY,
            message_type=int(MessageType.TRANSACTION),
            born_timestamp=message("Time", seconds=born // 1000, nanos=born % 1000 * 1_000_000),
            queue_id=check.queue_id,
            queue_offset=check.queue_offset,
            message_group=group,
            delivery_attempt=1,
            **context,
        ),
    )
    transaction_id = ids.of(check.half, check.real_topic)
    return message("RecoverOrphanedTransactionCommand", message=asked, transaction_id=transaction_id)
