"""A keep-alive connection to a gateway, by libcurl."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pycurl

from checkback.check.connections import Handle, Post, options
from checkback.messages.trace_context import NO_CONTEXT
from checkback.producer.calls import NoReply
from checkback.producer.gateway_address import not_pem
from checkback.producer.responses import MAX_REPLY, GatewayReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.producer.gateway_address import Address

#: Of handles that were in use in another thread when the process forked: libcurl must not touch them in the child.
_LEFT_TO_THE_PARENT: list[Handle] = []


def curl_options(ca_file: str | None) -> Mapping[int, Any]:
    """Libcurl's options; ``ca_file``: PEM CA certificates for https (None: the system's).

    Raises SettingsError if they cannot be read.
    """
    try:
        return options(ca_file, MAX_REPLY)
    except OSError as error:
        raise not_pem(ca_file, error) from error


class Connection:
    """For one thread at a time. ``curl_options``: see `curl_options`.

    A timeout bounds a request as a whole, from connecting to the last byte of the reply.
    """

    def __init__(self, address: Address, curl_options: Mapping[int, Any]) -> None:
        self.url = address.gateway_url
        self._address = address
        self._handle: Handle | None = None
        #: of a request, with these headers
        self._head_bytes, self._sized = 0, address.headers
        self._sockets: set[int] = set()
        self._in_use = False
        self._options = curl_options

    def post(
        self, path: str, body: bytes, timeout_s: float, more: Mapping[str, str] = NO_CONTEXT
    ) -> GatewayReply | NoReply:
        """The reply to a request, or why there is none. ``more``: headers of this request."""
        handle = self._handle
        if handle is None:
            handle = self._handle = Handle(self._options)
            handle.curl.setopt(pycurl.SOCKOPTFUNCTION, self._opened)
            handle.curl.setopt(pycurl.CLOSESOCKETFUNCTION, self._closed)
        headers, added = self._address.headers, 0
        if headers is not self._sized:  # another token
            self._head_bytes, self._sized = 0, headers
        if more:
            lines = [f"{name}: {value}" for name, value in more.items()]
            headers, added = [*headers, *lines], sum(len(line) + 2 for line in lines)
        handle.prepare(Post(self._address.url(path), headers, body))
        handle.curl.setopt(pycurl.TIMEOUT_MS, max(1, round(timeout_s * 1000)))
        self._in_use = True
        try:
            response = handle.perform(timeout_s)
        finally:
            self._in_use = False
        if response.error is not None:
            return NoReply(response.error, response.sent)
        return GatewayReply(
            response.status,
            response.body,
            response.header("Content-Type") or "",
            response.header("Retry-After"),
            self._was_resent(handle, len(body), added),
        )

    def answers(self, path: str, timeout_s: float) -> bool:
        """Is a GET answered with 200?"""
        handle = Handle({option: value for option, value in self._options.items() if option != pycurl.POST})
        handle.curl.setopt(pycurl.URL, self._address.url(path))
        handle.curl.setopt(pycurl.TIMEOUT_MS, max(1, round(timeout_s * 1000)))
        try:
            return handle.perform(timeout_s).status == HTTPStatus.OK
        finally:
            handle.curl.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._handle is not None:
            self._handle.curl.close()
            self._handle = None

    def forked(self) -> None:
        """In the child of a fork: leave the connection to the parent.

        The sockets are replaced, so that what libcurl still writes, as the end of a TLS session, reaches nobody.
        """
        if self._sockets:
            try:
                nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            except OSError:  # no file can be opened
                for number in self._sockets:
                    os.close(number)
            else:
                for number in self._sockets:
                    os.dup2(nowhere, number, inheritable=False)
                os.close(nowhere)
        if self._handle is not None and self._in_use:
            _LEFT_TO_THE_PARENT.append(self._handle)
        self._handle, self._in_use, self._sockets = None, False, set()

    def _was_resent(self, handle: Handle, length: int, added: int) -> bool:
        """Libcurl sends a request again when a kept connection ends before any of the reply.

        ``length``: bytes of its body; ``added``: of its own headers.
        """
        head: int = handle.curl.getinfo(pycurl.REQUEST_SIZE) - length
        if not self._head_bytes:
            self._head_bytes = head - added
        return head > (self._head_bytes + added) * 3 // 2

    def _opened(self, number: int, _: int) -> int:
        self._sockets.add(number)
        return pycurl.SOCKOPT_OK

    def _closed(self, number: int) -> int:
        self._sockets.discard(number)
        os.close(number)
        return 0
