"""Many concurrent HTTP POSTs from one thread, with libcurl's multi interface.

A thread for each POST would cost four times the CPU, because of contention for the GIL. And ``TIMEOUT_MS`` bounds a
whole try: DNS lookup, connecting, TLS, sending, and the response up to its last byte.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pycurl

from checkback.check.wire import MAX_ANSWER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: identifies a POST to its caller
Key = TypeVar("Key")

#: libcurl takes the first three digits of more for the status
_LONG_STATUS = re.compile(rb"HTTP/\S+ \d{3}\w", re.IGNORECASE)
_LONGEST_WAIT_S = 1.0
_NAP_S = 0.001
#: longest text of an error
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


class Post(NamedTuple):
    """A request. ``headers``: whole lines; passing the same list object is cheaper than an equal one."""

    url: str
    headers: Sequence[str]
    body: bytes


class Response(NamedTuple):
    """The result of a POST.

    ``status``: of the response, 0 = none; ``body``: complete, or what was received before the ``error``, which never
    quotes the server. ``too_long``: the body is over 4 KiB, and was not read to its end. ``headers``: their lines,
    unless the status is 200. ``sent``: part of the request was written to a connection, after the TLS handshake if any.
    """

    status: int
    body: bytes = b""
    error: str | None = None
    too_long: bool = False
    headers: Sequence[bytes] = ()
    sent: bool = True

    def header(self, name: str) -> str | None:
        """The value of a header, the last one of that name."""
        found, wanted = None, name.lower().encode("ascii")
        for line in self.headers:
            field, colon, value = line.partition(b":")
            if line.startswith(b"HTTP/"):
                found = None  # the headers before belong to an interim response
            elif colon and field.lower() == wanted:
                found = value.strip().decode("latin-1")
        return found


def options(ca_file: str | None, most: int) -> dict[int, Any]:
    """The options of libcurl for POSTs of JSON; ``most``: bytes read of a response.

    Certificates are always verified: against ``ca_file`` (PEM), or the system's authorities if it is None. Redirects
    are not followed, cookies not kept, and neither proxy nor credentials taken from the environment. An unreadable
    ``ca_file`` raises OSError or ssl.SSLError.
    """
    if ca_file:  # fails now, where libcurl would fail at each connection
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
    system = ssl.get_default_verify_paths()  # a wheel's libcurl may search elsewhere
    return {
        pycurl.POST: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
        pycurl.FOLLOWLOCATION: 0,
        pycurl.PROXY: "",
        pycurl.NOPROXY: "*",
        pycurl.NETRC: pycurl.NETRC_IGNORED,
        pycurl.SSLVERSION: pycurl.SSLVERSION_TLSv1_2,
        pycurl.CAINFO: ca_file or system.cafile,
        pycurl.CAPATH: None if ca_file else system.capath,
        pycurl.MAXFILESIZE: most,
        pycurl.NOSIGNAL: 1,
    }


class Handle:
    """A libcurl easy handle, reused for one POST after another, and what it has received."""

    def __init__(self, options: Mapping[int, Any]) -> None:
        self.body: list[bytes] = []
        self.headers: list[bytes] = []
        self._sent: Sequence[str] | None = None
        self.curl = pycurl.Curl()
        for option, value in options.items():
            if value is None:
                self.curl.unsetopt(option)
            else:
                self.curl.setopt(option, value)
        self.curl.setopt(pycurl.WRITEFUNCTION, self.body.append)
        self.curl.setopt(pycurl.HEADERFUNCTION, self.headers.append)

    def prepare(self, post: Post) -> None:
        """Set the request of the next transfer."""
        self.body.clear()
        self.headers.clear()
        self.curl.setopt(pycurl.URL, post.url)
        self.curl.setopt(pycurl.POSTFIELDS, post.body)
        if post.headers is not self._sent:
            # Without Expect: a large request would wait for 100 Continue.
            self.curl.setopt(pycurl.HTTPHEADER, [*post.headers, "Expect:"])
            self._sent = post.headers

    def perform(self, timeout_s: float) -> Response:
        """Send the prepared request, and wait for its response."""
        try:
            self.curl.perform()
        except pycurl.error as error:
            code, message = error.args  # type: ignore[misc]  # its stubs name only one
            return self.response(code, message, timeout_s)
        return self.response(0, "", timeout_s)

    def response(self, code: int, message: str, timeout_s: float) -> Response:
        """The received response. ``code``, ``message``: libcurl's error; 0 = none."""
        status: int = self.curl.getinfo(pycurl.RESPONSE_CODE)
        body = b"".join(self.body)
        if not code and any(map(_LONG_STATUS.match, self.headers)):
            return Response(0, error="not HTTP")
        if not code and b"\r\n" not in self.headers and b"\n" not in self.headers:
            return Response(0, error="answer cut short")  # in its header: libcurl takes what came for all of it
        if not code and status == 200:
            return Response(status, body)
        too_long = code == pycurl.E_FILESIZE_EXCEEDED
        known = not code or too_long
        error = None if known else describe(code, message, self.curl.getinfo(pycurl.OS_ERRNO), timeout_s)
        sent = self.curl.getinfo(pycurl.REQUEST_SIZE) > 0
        # An interim status is no status of a response, unless libcurl takes it for the last: 101.
        return Response(0 if status < 200 and code else status, body, error, too_long, tuple(self.headers), sent)


class Connections(Generic[Key]):
    """A keep-alive connection pool for one thread: one connection for each in-flight POST.

    ``timeout_s`` bounds each POST as a whole; ``ca_file``: see `options`. If the server closes a keep-alive connection
    before it sends any of the response, libcurl retries on a new one, at most five times and within the same timeout.
    """

    def __init__(self, timeout_s: float, ca_file: str | None) -> None:
        self._timeout_s = timeout_s
        self._options = options(ca_file, MAX_ANSWER) | {pycurl.TIMEOUT_MS: max(1, round(timeout_s * 1000))}
        self._multi = pycurl.CurlMulti()
        self._under_way: dict[pycurl.Curl, tuple[Handle, Key]] = {}
        self._idle: list[Handle] = []

    def close(self) -> None:
        """Close the connections; in-flight POSTs get no response."""
        for curl in (*self._under_way, *(handle.curl for handle in self._idle)):
            curl.close()
        self._under_way, self._idle = {}, []
        self._multi.close()

    def post(self, post: Post, key: Key) -> None:
        """Start sending a POST."""
        handle = self._idle.pop() if self._idle else Handle(self._options)
        handle.prepare(post)
        self._under_way[handle.curl] = handle, key
        self._multi.add_handle(handle.curl)

    def responses(self, wait_s: float = _LONGEST_WAIT_S) -> list[tuple[Key, Response]]:
        """The responses of finished POSTs. Waits at most ``wait_s`` if none has finished yet."""
        self._multi.perform()
        ended = self._ended()
        if not ended and wait_s > 0:
            self._wait(wait_s)
            self._multi.perform()
            ended = self._ended()
        return ended

    def _wait(self, seconds: float) -> None:
        due_ms = self._multi.timeout()
        seconds = min(seconds, _LONGEST_WAIT_S, due_ms / 1000 if due_ms >= 0 else seconds)
        started = time.monotonic()
        if not self._multi.select(seconds) and time.monotonic() - started < seconds:
            time.sleep(min(seconds, _NAP_S))  # there was no socket to wait for

    def _ended(self) -> list[tuple[Key, Response]]:
        ended = []
        while True:
            queued, well, failed = self._multi.info_read()
            ended += [self._end(curl, 0, "") for curl in well]
            ended += [self._end(curl, code, message) for curl, code, message in failed]
            if not queued:
                return ended

    def _end(self, curl: pycurl.Curl, code: int, message: str) -> tuple[Key, Response]:
        handle, key = self._under_way.pop(curl)
        response = handle.response(code, message, self._timeout_s)
        self._multi.remove_handle(curl)
        self._idle.append(handle)
        return key, response


def describe(code: int, message: str, system: int, timeout_s: float) -> str:
    """Why there is no answer, in at most 200 characters, which never quote the server.

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
