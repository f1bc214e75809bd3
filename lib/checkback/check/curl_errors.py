"""Short texts for libcurl's errors, which never quote the server."""

from __future__ import annotations

import errno
import os
import re

import pycurl

_LONGEST = 200
# CURLE_TOO_LARGE and CURLE_WEIRD_SERVER_REPLY have no name in pycurl
_TOO_LARGE, _WEIRD_SERVER_REPLY = 100, 8
_WORDS = {
    pycurl.E_COULDNT_CONNECT: "not connected",
    pycurl.E_COULDNT_RESOLVE_HOST: "host name: could not be resolved",
    pycurl.E_GOT_NOTHING: "connection closed without an answer",
    pycurl.E_PARTIAL_FILE: "answer cut short",
    pycurl.E_RECV_ERROR: "answer cut short",  # also: a malformed chunk
    pycurl.E_SEND_ERROR: "connection closed without an answer",  # as well as the retries on keep-alive connections
    pycurl.E_SSL_CACERT_BADFILE: "certificate not accepted: the CA file cannot be read",
    _TOO_LARGE: "not HTTP",  # endless headers
    pycurl.E_UNSUPPORTED_PROTOCOL: "not HTTP",  # HTTP/0.9, i.e. any data
    _WEIRD_SERVER_REPLY: "not HTTP",
}
#: errors for which errno is more specific
_OF_THE_SYSTEM = frozenset({pycurl.E_COULDNT_CONNECT, pycurl.E_RECV_ERROR, pycurl.E_SEND_ERROR})
_RESET = "connection reset"
# libcurl's message may quote the server's certificate; these parts of it are OpenSSL's own texts
_VERIFIED = re.compile(r"(?:verify result|certificate problem): (.+?)(?: \(\d+\))?$")
_ROUTINE = re.compile(r"SSL routines:[^:]*:([\w ]+)$")


def describe(code: int, message: str, system: int, timeout_s: float) -> str:
    """Why there is no answer, in at most 200 characters.

    ``code``: libcurl's CURLE; ``message``: its text; ``system``: errno of the connection, 0 = none.
    """
    return _words(code, message, system, timeout_s)[:_LONGEST]


def _words(code: int, message: str, system: int, timeout_s: float) -> str:
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return f"timed out after {timeout_s:g} s"
    if code == pycurl.E_PEER_FAILED_VERIFICATION:
        verified = _VERIFIED.search(message)
        return f"certificate not accepted: {verified[1] if verified else 'it is not for this host'}"
    if code == pycurl.E_SSL_CONNECT_ERROR:
        routine = _ROUTINE.search(message)
        return f"TLS failed: {routine[1].upper().replace(' ', '_') if routine else 'connection closed'}"
    if code in _OF_THE_SYSTEM and system:
        return _RESET if system == errno.ECONNRESET else os.strerror(system).lower()
    return _WORDS.get(code, f"failed: libcurl error {code}")
