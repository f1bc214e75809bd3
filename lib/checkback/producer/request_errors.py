"""Describes a failed attempt in a few words, none of them from the server."""

from __future__ import annotations

import os
import socket
import ssl
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING

from urllib3.exceptions import IncompleteRead as BodyCutShort
from urllib3.exceptions import ProtocolError, ReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMED_OUT = "timed out"
_LONGEST = 200


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, root cause last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def describe(error: BaseException, timeout_s: float) -> str:
    """Why there is no answer, in at most 200 characters.

    Only fixed texts and the OS's messages: an error of http.client may quote the response.
    """
    for cause in reversed(list(causes(error))):
        words = _words(cause, timeout_s)
        if words:
            return words[:_LONGEST]
    return f"failed: {type(error).__name__}"[:_LONGEST]


def _words(error: BaseException, timeout_s: float) -> str | None:  # noqa: PLR0911 - a table
    if isinstance(error, (TimeoutError, ReadTimeoutError)):
        return f"{TIMED_OUT} after {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'connection closed'}"
    if isinstance(error, RemoteDisconnected):
        return "connection closed without an answer"
    if isinstance(error, (IncompleteRead, BodyCutShort)):
        return "answer cut short"
    if isinstance(error, socket.gaierror):
        return f"host name: {error.strerror or error}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if isinstance(error, (HTTPException, ProtocolError)):
        return "not HTTP"
    return None
