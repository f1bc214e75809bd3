"""The interface's numbers: codes of a status, kinds of messages; and the code that a problem of the gateway gets."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from checkback.gateway.problems import Problem


class Code(IntEnum):
    """``Code`` of RocketMQ's interface: those that the gateway answers."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_DELIVERY_TIME = 40012
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    TOPIC_NOT_FOUND = 40402
    REQUEST_TIMEOUT = 40800
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    PRECONDITION_FAILED = 42800
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    UNSUPPORTED = 50500


class MessageType(IntEnum):
    """Kinds of messages."""

    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4


#: Encoding.IDENTITY, GZIP; DigestType.MD5; Permission.READ_WRITE; ClientType.PRODUCER
IDENTITY, GZIP, MD5, READ_WRITE, PRODUCER = 1, 2, 2, 4, 1
#: AddressScheme
IPV4, DOMAIN_NAME = 1, 3
#: TransactionResolution, as an op's state
STATE_OF = {1: "COMMIT", 2: "ROLLBACK"}


class Refusal(NamedTuple):
    """A status that is not OK."""

    code: Code
    message: str


#: Java waits and sends again after TOO_MANY_REQUESTS; the other clients give up at once or try thrice.
_CODES = {
    "unauthorized": Code.UNAUTHORIZED,
    "unknown_group": Code.FORBIDDEN,
    "forbidden_group": Code.FORBIDDEN,
    "transactions_rejected": Code.FORBIDDEN,
    "unknown_offset": Code.INVALID_TRANSACTION_ID,
    "wrong_group": Code.INVALID_TRANSACTION_ID,
    "wrong_transaction_id": Code.INVALID_TRANSACTION_ID,
    "contradiction": Code.PRECONDITION_FAILED,
    "unfit": Code.BAD_REQUEST,
    "queue_full": Code.TOO_MANY_REQUESTS,
    "journal_full": Code.TOO_MANY_REQUESTS,
    "storage_unavailable": Code.HA_NOT_AVAILABLE,
    "stopping": Code.HA_NOT_AVAILABLE,
}
#: by the field of a message that is unfit
_FIELDS = {
    "transaction_id": Code.ILLEGAL_MESSAGE_ID,
    "producer_group": Code.ILLEGAL_TOPIC,
    "real_topic": Code.ILLEGAL_TOPIC,
    "body": Code.MESSAGE_BODY_TOO_LARGE,
    "ordering_key": Code.ILLEGAL_MESSAGE_GROUP,
    "tags": Code.ILLEGAL_MESSAGE_TAG,
    "keys": Code.ILLEGAL_MESSAGE_KEY,
    "properties": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "deliver_at": Code.ILLEGAL_DELIVERY_TIME,
}


def unfit_field(reason: str) -> Refusal:
    """The status for a message that is rejected; ``reason``: the field, a colon, and why."""
    return Refusal(_FIELDS.get(reason.partition(":")[0], Code.BAD_REQUEST), reason)


def refusal_of(problem: Problem) -> Refusal:
    """The status for a problem of the gateway."""
    if problem.code == "unfit":
        return unfit_field(problem.detail)
    return Refusal(_CODES.get(problem.code, Code.INTERNAL_SERVER_ERROR), f"{problem.code}: {problem.detail}")
