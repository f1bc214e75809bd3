"""What a RocketMQ 5.3.3 server told Apache's clients, scenario by scenario, and where the gateway differs.

Recorded with the clients for Python 5.1.2, Java 5.1.0 and Node.js 1.0.8, and with a bare stub what they do not show;
RocketMQ's consumers told what was delivered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: transaction.check_max, and RocketMQ's transactionCheckMax
CHECK_MAX = 4
OK, NO_TRANSACTION, REFUSED = 20000, "ClientException 50001", "IllegalArgumentException"
NO_ROUTE, FORBIDDEN, TOO_LARGE = "Exception", "BadRequestException 40007", "RequestHeaderFieldsTooLargeException 43101"
_ASKED = {"asked about": ["half", "tagA", ["k1", "k2"], "7", False], "same message id": True}
ORDER = [f"{group}-{number}" for group in ("g1", "g2", "g3") for number in range(10)]
#: the client for Python says whether the body is corrupted
_ASKED_BY_JAVA = {**_ASKED, "asked about": ["half", "tagA", ["k1", "k2"], "7"]}
_TEN = [f"m{number}" for number in range(10)]
_FIELDS: dict[str, Any] = {
    "delivered": ["grüße 你好"],
    "tag": "tag-ü",
    "keys": ["2", "k", "k1", "ключ"],
    "properties": {
        "a": "b",
        "unicode": "grüße 你好 🙂",
        "spaces": " x ",
        "quote": "\"'\\",
        "sep": "a|b;c=d,e",
        "Key.With-odd_chars": "1",
        "ключ": "значение",
    },
}
REJECTED = "ClientException 42800"
_AGAIN, _DECIDED, _UNKNOWN = "50001 to a second commit", "50001 to a commit after a rollback", "50001 to an unknown"
_ANY_TOPIC = "a topic exists, with one type"


class Difference(NamedTuple):
    """``what`` of a scenario has this ``value`` here; ``row``: how the row of the page that says so begins."""

    scenario: str
    what: str
    value: Any
    row: str


class Recorded(NamedTuple):
    """``outcomes``: scenario -> what the client was told, and the bodies delivered (of many, how many)."""

    outcomes: dict[str, dict[str, Any]]
    differences: list[Difference]


#: what is otherwise with any client
_DIFFERENCES = [
    Difference("tx_two_producers", "checks of the sender", 10, "spreads checks over all producers"),
    Difference("tx_two_producers", "of the other one", 0, "spreads checks over all producers"),
    Difference("tx_undeclared_after_start", "checks", 1, "asks nobody about a topic"),
    Difference("tx_undeclared_after_start", "delivered", ["half"], "asks nobody about a topic"),
    Difference("tx_very_late_commit", "commit", REJECTED, _DECIDED),
    Difference(
        "tx_commit_and_check", "delivered", [f"m{number}" for number in sorted(range(12), key=str)], "may deliver twice"
    ),
    Difference("topics", "topics", "OK", _ANY_TOPIC),
    Difference("topics", "delivered", ["x"], _ANY_TOPIC),
    *(Difference("types", kind, "OK", _ANY_TOPIC) for kind in ("FIFO", "DELAY", "NORMAL")),
    Difference("types", "delivered", ["DELAY", "FIFO", "NORMAL", "TRANSACTION"], _ANY_TOPIC),
]

PYTHON = Recorded(
    outcomes={
        "tx_commit": {
            "visible before": False,
            "commit": OK,
            "transaction id is the message id": True,
            "delivered": ["hello"],
        },
        "tx_rollback": {"rollback": OK, "checks": 0, "delivered": []},
        "tx_check_commit": {"checks": 1, **_ASKED, "delivered": ["half"]},
        "tx_check_rollback": {"checks": 1, **_ASKED, "delivered": []},
        "tx_check_unknown": {"checks": CHECK_MAX, **_ASKED, "delivered": []},
        "tx_checker_raises": {"checks": CHECK_MAX, **_ASKED, "delivered": []},
        "tx_checker_returns_none": {"checks": CHECK_MAX, **_ASKED, "delivered": []},
        "tx_unknown_then_commit": {"checks": 3, **_ASKED, "delivered": ["half"]},
        "tx_raises_then_commit": {"checks": 2, **_ASKED, "delivered": ["half"]},
        "tx_kill9": {"died": -9, "checks": 1, "delivered": ["from the killed one"]},
        "tx_two_producers": {
            "checks of the sender": 5,
            "of the other one": 5,
            "delivered": _TEN,
        },
        "tx_topic_not_declared": {"checks": 1, "delivered": ["half"]},
        "tx_undeclared_after_start": {"checks": 0, "delivered": []},
        "tx_no_checker": {"begin": REFUSED, "delivered": []},
        "tx_second_end": {
            "commit commit": [OK, NO_TRANSACTION],
            "rollback commit": [OK, NO_TRANSACTION],
            "commit rollback": [OK, NO_TRANSACTION],
            "rollback rollback": [OK, NO_TRANSACTION],
            "delivered": ["commit commit", "commit rollback"],
        },
        "tx_wrong_ids": {
            "unknown transaction id": 50001,
            "empty transaction id": 40008,
            "wrong message id": OK,
            "wrong topic": 50001,
            "right one after it": OK,
            "unspecified": OK,
            "commit after it": NO_TRANSACTION,
            "delivered": ["w1", "w2"],
        },
        "tx_late_commit": {"commit": OK, "delivered": ["half"]},
        "tx_very_late_commit": {"commit": NO_TRANSACTION, "checks": CHECK_MAX, "delivered": []},
        "tx_commit_and_check": {"told": [OK], "delivered": 20},  # 8 of the 12 twice
        "tx_misuse": {
            "commit without a message": REFUSED,
            "second message": REFUSED,
            "with a delay": REFUSED,
            "with a group": REFUSED,
            "delivered": ["half"],
        },
        "fields": {"send": "OK", **_FIELDS},
        "odd_properties": {
            "newline in a value": FORBIDDEN,
            "tab": FORBIDDEN,
            "newline in a name": FORBIDDEN,
            "empty value": REFUSED,
            "blank value": REFUSED,
            "empty name": REFUSED,
            "TAGS": FORBIDDEN,
            "KEYS": FORBIDDEN,
            "UNIQ_KEY": FORBIDDEN,
            "15 kB": "OK",
            "17 kB": TOO_LARGE,
            "128": "OK",
            "129": TOO_LARGE,
            "| in the tag": REFUSED,
            "newline in the tag": "BadRequestException 40004",
            "newline in a key": "BadRequestException 40005",
            "blank tag": REFUSED,
            "delivered": ["128", "15 kB"],
        },
        "bodies": {
            "0": REFUSED,
            "1": "OK",
            "1024": "OK",
            "4194303": "OK",
            "4194304": "OK",
            "4194305": REFUSED,
            "delivered": 4,
        },
        "topics": {
            "topics": NO_ROUTE,
            "a b": REFUSED,
            "a/b": REFUSED,
            "tö": REFUSED,
            "": REFUSED,
            "%odd%": NO_ROUTE,
            "TBW102": NO_ROUTE,
            "%RETRY%g": NO_ROUTE,
            "p.dot": REFUSED,
            "system": NO_ROUTE,
            "127": NO_ROUTE,
            "128": NO_ROUTE,
            "delivered": [],
        },
        "types": {
            "FIFO": REFUSED,
            "DELAY": REFUSED,
            "NORMAL": REFUSED,
            "TRANSACTION": OK,
            "delivered": ["TRANSACTION"],
        },
        "delay": {
            "due": "OK",
            "past": "OK",
            "now": "OK",
            "23 h": "OK",
            "25 h": "BadRequestException 40012",
            "in milliseconds": "InternalErrorException 50001",
            "delivered": ["due", "now", "past"],
            "before its time": False,
        },
        "fifo": {"delivered": ORDER},
        "threads": {"OK": 1000, "delivered": 1000},
        "tx_threads": {str(OK): 1000, "delivered": 800},
        "namespace": {"send": "OK", "delivered": ["ns"]},
        "lost_answer": {"told": "OK", "sent": 2, "ids": 1, "delivered": ["x", "x"]},
        # it stores both; what came of the other one was not recorded
        "lost_answer_to_half": {"told": OK, "sent": 2, "ids": 1, "delivered": ["half"]},
    },
    differences=[
        *_DIFFERENCES,
        Difference("tx_commit", "transaction id is the message id", False, "the transaction id is the message id"),
        Difference("tx_second_end", "commit commit", [OK, OK], _AGAIN),
        Difference("tx_second_end", "rollback rollback", [OK, OK], _AGAIN),
        Difference("tx_second_end", "rollback commit", [OK, REJECTED], _DECIDED),
        Difference("tx_second_end", "commit rollback", [OK, REJECTED], _DECIDED),
        Difference("tx_wrong_ids", "unknown transaction id", 40008, _UNKNOWN),
        Difference("tx_wrong_ids", "wrong topic", 40008, _UNKNOWN),
        Difference("tx_wrong_ids", "commit after it", OK, "refuses a commit after UNKNOWN"),
        Difference("tx_wrong_ids", "delivered", ["w1", "w2", "w3"], "refuses a commit after UNKNOWN"),
        Difference("delay", "in milliseconds", "BadRequestException 40012", "50001 to a delivery time"),
        Difference("lost_answer", "delivered", ["x"], "stores a message sent again"),
    ],
)

JAVA = Recorded(
    outcomes={
        "tx_commit": {"commit": "OK", "message id": 34, "delivered": ["hello"]},
        "tx_rollback": {"rollback": "OK", "checks": 0, "delivered": []},
        "tx_check_commit": {"checks": 1, **_ASKED_BY_JAVA, "delivered": ["half"]},
        "tx_check_rollback": {"checks": 1, **_ASKED_BY_JAVA, "delivered": []},
        "tx_check_unknown": {"checks": CHECK_MAX, **_ASKED_BY_JAVA, "delivered": []},
        "tx_checker_raises": {"checks": CHECK_MAX, **_ASKED_BY_JAVA, "delivered": []},
        "tx_unknown_then_commit": {"checks": 3, **_ASKED_BY_JAVA, "delivered": ["half"]},
        "tx_raises_then_commit": {"checks": 2, **_ASKED_BY_JAVA, "delivered": ["half"]},
        "tx_two_producers": {"checks of the sender": 5, "of the other one": 5, "delivered": _TEN},
        "tx_sender_is_gone": {"checks": 1, "delivered": ["half"]},
        "tx_topic_not_declared": {"checks": 1, "delivered": ["half"]},
        "tx_undeclared_after_start": {"checks": 0, "delivered": []},
        "tx_no_checker": {"begin": "NullPointerException", "delivered": []},
        "tx_second_end": {
            "commit commit": ["OK", NO_TRANSACTION],
            "rollback commit": ["OK", NO_TRANSACTION],
            "commit rollback": ["OK", NO_TRANSACTION],
            "rollback rollback": ["OK", NO_TRANSACTION],
            "delivered": ["commit commit", "commit rollback"],
        },
        "tx_late_commit": {"commit": "OK", "delivered": ["half"]},
        "tx_very_late_commit": {"commit": NO_TRANSACTION, "checks": CHECK_MAX, "delivered": []},
        "tx_commit_and_check": {"told": ["OK"], "delivered": 20},
        "tx_misuse": {
            "commit without a message": "IllegalStateException",
            "second message": "ClientException",
            "with a delay": "ClientException",
            "with a group": "ClientException",
            "delivered": ["half"],
        },
        "fields": {"send": "OK", **_FIELDS},
        "odd_properties": {
            "newline in a value": FORBIDDEN,
            "tab": FORBIDDEN,
            "newline in a name": FORBIDDEN,
            "empty value": REFUSED,
            "TAGS": FORBIDDEN,
            "UNIQ_KEY": FORBIDDEN,
            "15 kB": "OK",
            "17 kB": TOO_LARGE,
            "128": "OK",
            "129": TOO_LARGE,
            "| in the tag": REFUSED,
            "blank tag": REFUSED,
            "delivered": ["128", "15 kB"],
        },
        "bodies": {
            "0": REFUSED,
            "1": "OK",
            "1024": "OK",
            "4194303": "OK",
            "4194304": "OK",
            "4194305": "ClientException",
            "delivered": 4,
        },
        "topics": {
            "topics": "NotFoundException 40402",
            "a b": REFUSED,
            "a/b": REFUSED,
            "": REFUSED,
            "%odd%": "NotFoundException 40402",
            "RMQ_SYS_TRANS_HALF_TOPIC": "BadRequestException 40002",
            "start with an unknown one": "NotFoundException 40402",
            "delivered": [],
        },
        "types": {
            "FIFO": REFUSED,
            "DELAY": REFUSED,
            "NORMAL": REFUSED,
            "TRANSACTION": "OK",
            "delivered": ["TRANSACTION"],
        },
        "delay": {
            "due": "OK",
            "past": "OK",
            "now": "OK",
            "23 h": "OK",
            "25 h": "BadRequestException 40012",
            "delivered": ["due", "now", "past"],
            "before its time": False,
        },
        "fifo": {"delivered": ORDER},
        "threads": {"OK": 1000, "delivered": 1000},
        "async": {"OK": 1000, "delivered": 1000},  # not recorded
        "tx_threads": {"OK": 1000, "delivered": 800},
        "namespace": {"send": "OK", "delivered": ["ns"]},
    },
    differences=[
        *_DIFFERENCES,
        Difference("tx_second_end", "commit commit", ["OK", "OK"], _AGAIN),
        Difference("tx_second_end", "rollback rollback", ["OK", "OK"], _AGAIN),
        Difference("tx_second_end", "rollback commit", ["OK", REJECTED], _DECIDED),
        Difference("tx_second_end", "commit rollback", ["OK", REJECTED], _DECIDED),
        Difference("topics", "%odd%", "BadRequestException 40002", "topics with `%`"),
        Difference("topics", "start with an unknown one", "OK", _ANY_TOPIC),
    ],
)

NODE = Recorded(
    outcomes={
        "n_commit": {"commit": "OK", "commit again": "InternalErrorException 50001", "delivered": ["hello"]},
        "n_check": {"asked about": ["half", "half"], "delivered": ["half"]},
        "n_errors": {
            "newline": FORBIDDEN,
            "empty value": "OK",
            "empty body": "UnsupportedException 41302",
            "body too large": "TypeError",
            "unknown topic": "NotFoundException 40402",
            "FIFO": "TypeError",
            "delivered": ["empty value"],
        },
    },
    differences=[
        Difference("n_commit", "commit again", "OK", _AGAIN),
        Difference("n_errors", "unknown topic", "OK", _ANY_TOPIC),
        Difference("n_errors", "FIFO", "OK", _ANY_TOPIC),
        Difference("n_errors", "delivered", ["FIFO", "empty value"], _ANY_TOPIC),
    ],
)
