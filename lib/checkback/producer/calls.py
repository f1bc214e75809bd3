"""What one caller sends, and what the replies mean for it. No network, no clock, no threads."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from checkback.messages.limits import BATCH_MAX
from checkback.messages.trace_context import NO_CONTEXT
from checkback.producer.message import half_json, id_of
from checkback.producer.responses import (
    TRY_AGAIN,
    GatewayError,
    GatewayReply,
    ItemReply,
    Place,
    may_have_landed,
    read_place,
    read_results,
    refusal,
)
from checkback.producer.result import SendResult, not_sent, sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from checkback.producer.listener import LocalTransactionState
    from checkback.producer.message import Message
    from checkback.producer.retry import Attempts

#: bytes of a request above which no further message is added; the gateway's limit is 16 MiB
BATCH_BYTES = 4 << 20
#: bytes that a value of a message counts for at least: a request then has fewer values than the gateway's 50,000
_VALUE = 100


class Route(NamedTuple):
    """A route of the gateway that takes several messages, and the member of its body that has them."""

    path: str
    member: bytes


HALVES, MESSAGES, OPS = Route("/v1/halves", b"messages"), Route("/v1/messages", b"messages"), Route("/v1/ops", b"ops")


class NoReply(NamedTuple):
    """An attempt without a reply; ``reason``: in a few words, none of them from the server.

    ``sent``: part of the request was written to a connection.
    """

    reason: str
    sent: bool = True


#: by how the reason of an attempt without a reply begins
_FIXES = {
    "host name": "look at the gateway's URL",
    "TLS failed": "look at the gateway's URL: http or https?",
    "not HTTP": "look at the gateway's URL: http or https?",
    "certificate": "look at the gateway's URL and at ca_file",
}


def _fix(reason: str) -> str:
    found = [fix for begin, fix in _FIXES.items() if reason.startswith(begin)]
    return found[0] if found else "check that the gateway runs"


_Replied = Union[NoReply, GatewayReply, GatewayError, list[dict[str, Any]]]  # noqa: UP007 - Python 3.10 evaluates it


class Call:
    """Messages that are sent in the same request: one, or those of a batch; each has a result of its own.

    ``messages``: transaction id and JSON. ``results``: in order, the place of each that is stored, or why it is not;
    None = not known yet. ``waiter``: how its caller waits for the end of an attempt. URLs of gateways: ``home``, to
    which messages in order go unless it is left alone, None = any; ``gateway``, that of the last attempt; ``preferred``
    for the next one, unless it is left alone; ``pinned``, the only one that may have it. None = any. ``trace``: the
    trace context in which it is made.
    """

    __slots__ = (
        *("_left", "_reply", "attempts", "gateway", "home", "messages", "pinned", "preferred", "results", "size"),
        *("taken", "trace", "waiter"),
    )

    def __init__(
        self,
        messages: Sequence[tuple[str, bytes]],
        attempts: Attempts,
        home: str | None = None,
        trace: Mapping[str, str] = NO_CONTEXT,
    ) -> None:
        self.messages = messages
        self.attempts = attempts
        self.results: list[Place | GatewayError | None] = [None] * len(messages)
        self.waiter: Any = None
        self.gateway = ""
        self.home = home
        self.trace = trace
        self.preferred: str | None = None
        self.pinned: str | None = None
        self._left: Sequence[int] = range(len(messages))
        self._reply: tuple[str, _Replied] | None = None
        #: as `size_of`
        self.size = size_of(messages[0][1]) if len(messages) == 1 else sum([size_of(json) for _, json in messages])
        #: by `Accumulator`: an attempt is under way, or was
        self.taken = False

    def __len__(self) -> int:
        return len(self._left)

    def json(self) -> bytes:
        """The messages of the next attempt, as elements of an array."""
        if len(self._left) == 1:
            return self.messages[self._left[0]][1]
        return b",".join([self.messages[at][1] for at in self._left])

    def replied(self, url: str, reply: _Replied) -> None:
        """An attempt has ended.

        ``reply``: none, one to the whole request, one that is not a gateway's, or a result for each message.
        """
        self._reply = url, reply

    def after(self, now: float) -> float | None:
        """Seconds to wait until the next attempt; None: every message has its result."""
        if self._reply is None:
            raise RuntimeError("no attempt has ended")
        (url, reply), self._reply = self._reply, None
        if isinstance(reply, list):
            return self._after_results(url, reply, now)
        if isinstance(reply, GatewayError):
            self.give_up(reply)
            return None
        if isinstance(reply, NoReply):
            wait = self.attempts.after_failure(now)
            return self._fail_unless(wait, lambda: GatewayError(reply.reason, url, _fix(reply.reason)))
        if reply.resent:
            self.attempts.lost = True
        wait = self.attempts.after_reply(reply, now)
        return self._fail_unless(wait, lambda: refusal(reply, url, self.attempts.lost))

    @property
    def silent(self) -> bool:
        """Has a message no answer at all?"""
        return any(isinstance(result, GatewayError) and result.status is None for result in self.results)

    def give_up(self, error: GatewayError) -> None:
        """The error is the result of every message that has none; there must be no further attempt.

        ``_left`` stays: an attempt may be under way, and its request has these messages.
        """
        for at in self._left:
            self.results[at] = error

    def _fail_unless(self, wait: float | None, error: Callable[[], GatewayError]) -> float | None:
        if wait is None:
            self.give_up(error())
        return wait

    def _after_results(self, url: str, results: Sequence[dict[str, Any]], now: float) -> float | None:
        lost = self.attempts.lost
        again: list[int] = []
        replies: list[ItemReply] = []
        for at, result in zip(self._left, results, strict=True):
            if result["status"] == HTTPStatus.OK:
                try:
                    self.results[at] = read_place(result, url, self.messages[at][0])
                except GatewayError as error:
                    self.results[at] = error
                continue
            reply = ItemReply(result["status"], result)
            if reply.status in TRY_AGAIN:
                again.append(at)
                replies.append(reply)
            self.results[at] = refusal(reply, url, lost)  # the last word, unless there is another attempt
        if not again:
            self._left = ()
            return None
        # One that may have landed makes the next refusal of all uncertain.
        wait = self.attempts.after_reply(next(filter(may_have_landed, replies), replies[0]), now)
        if wait is None:
            self._left = ()
            return None
        for at in again:
            self.results[at] = None
        self._left = again
        return wait


class Op(Call):
    """A COMMIT or ROLLBACK, which is sent behind its caller's back. ``number``: of those handed over.

    ``late``: a check may have decided before it came; ``again``: it has landed, and is sent to learn whether it counts.
    """

    __slots__ = ("again", "late", "number", "state")

    def __init__(
        self,
        transaction_id: str,
        json: bytes,
        attempts: Attempts,
        state: LocalTransactionState,
        trace: Mapping[str, str] = NO_CONTEXT,
    ) -> None:
        super().__init__([(transaction_id, json)], attempts, trace=trace)
        self.state = state
        self.number = 0
        self.late = self.again = False

    @property
    def transaction_id(self) -> str:
        """The transaction that it ends."""
        return self.messages[0][0]

    @property
    def error(self) -> GatewayError | None:
        """Why it has not landed."""
        result = self.results[0]
        return result if isinstance(result, GatewayError) else None


def request_body(route: Route, calls: Iterable[Call]) -> bytes:
    """The body of a request with the messages of several callers."""
    return b'{"%b":[%b]}' % (route.member, b",".join([call.json() for call in calls]))


def distribute(calls: Sequence[Call], url: str, reply: NoReply | GatewayReply) -> bool:
    """Give each call what the reply to the request of `request_body` has for it.

    False if the reply may not be this request's, or not the last: what comes next on its connection may be another's.
    """
    if isinstance(reply, GatewayReply) and reply.status == HTTPStatus.OK:
        try:
            results = read_results(reply, url, [call.messages[at][0] for call in calls for at in call._left])
        except GatewayError as error:
            for call in calls:
                call.replied(url, error)
            return False
        at = 0
        for call in calls:
            if reply.resent:
                call.attempts.lost = True
            end = at + len(call)
            call.replied(url, results[at:end])
            at = end
        return True
    for call in calls:
        call.replied(url, reply)
    return isinstance(reply, NoReply) or bool(reply.members)  # a proxy's: the gateway's own may follow


def size_of(json: bytes) -> int:
    """What a message counts for in BATCH_BYTES: its bytes, or more for one of many values."""
    return max(len(json), _VALUE * (json.count(b",") + json.count(b"{") + json.count(b"[")))


class Batch:
    """Messages that fit into a request to one gateway. ``numbers``: of each in what the caller sends; ``home``: `Call`.

    ``messages``: transaction id and JSON.
    """

    def __init__(self, home: str | None) -> None:
        self.home = home
        self.numbers: list[int] = []
        self.messages: list[tuple[str, bytes]] = []
        self._size = 0

    def add(self, number: int, transaction_id: str, json: bytes) -> bool:
        """Add a message; False if there is no room."""
        self._size += size_of(json)
        if self.numbers and (self._size > BATCH_BYTES or len(self.numbers) == BATCH_MAX):
            return False
        self.numbers.append(number)
        self.messages.append((transaction_id, json))
        return True


def batches(
    group: str, messages: Iterable[Message], born_ms: int, home_of: Callable[[Message], str | None]
) -> list[Batch]:
    """Messages in requests; those of a home in their order.

    Raises MessageRejectedError for an invalid message, before anything is sent.
    """
    found: list[Batch] = []
    filling: dict[str | None, Batch] = {}
    for number, message in enumerate(messages):
        transaction_id = id_of(message)
        json = half_json(group, message, transaction_id, born_ms)
        home = home_of(message)
        if home not in filling or not filling[home].add(number, transaction_id, json):
            filling[home] = Batch(home)
            filling[home].add(number, transaction_id, json)
            found.append(filling[home])
    return found


def send_results(call: Call) -> list[SendResult]:
    """The results of messages without a transaction."""
    return [
        sent(transaction_id, result) if isinstance(result, Place) else not_sent(transaction_id, _error(result))
        for (transaction_id, _), result in zip(call.messages, call.results, strict=True)
    ]


def unsent(messages: Sequence[tuple[str, bytes]]) -> list[SendResult]:
    """The results of a batch that was not sent, because the gateway did not answer the batch before it."""
    error = GatewayError("not sent: the batch before it got no answer", MESSAGES.path, "send it again", refused=True)
    return [not_sent(transaction_id, error) for transaction_id, _ in messages]


def _error(result: GatewayError | None) -> GatewayError:
    return result or GatewayError("no reply", MESSAGES.path)
