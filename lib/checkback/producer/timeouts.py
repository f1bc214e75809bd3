"""HTTP connections whose timeout is a deadline for a whole attempt: connecting, TLS, sending, and reading to the end.

The timeouts of requests and urllib3 are per read: a server that sends a byte now and then blocks a thread for ever.
Here a socket's timeout covers everything until the next ``settimeout``, which urllib3 calls once before it sends and
once, with the rest of ``Timeout(total=...)``, before it reads. Only name resolution has the resolver's own timeouts.
"""

from __future__ import annotations

import socket
import ssl
from time import monotonic
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

_LEAST = 0.001  # a timeout of 0 would mean "do not block"


class _Socket(socket.socket):
    """A socket whose timeout is a deadline for all later operations together."""

    _until: float | None = None

    def settimeout(self, value: float | None, /) -> None:
        super().settimeout(value)
        self._until = None if value is None else monotonic() + value

    def _arm(self) -> None:
        if self._until is not None:
            left = self._until - monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            super().settimeout(left)

    # http.client reads with recv_into only; a plain sendall has a total timeout already, that of TLS calls send.
    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._arm()
        return super().recv_into(*args, **kwargs)

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._arm()
        return super().send(data, flags)


class _TLSSocket(_Socket, ssl.SSLSocket):  # the order matters: super() of _Socket is then SSLSocket
    """The same over TLS."""


class _TotalTimeout(HTTPConnection):
    """Adds the deadline to urllib3's connections, plain and TLS."""

    def connect(self) -> None:
        until = None if self.timeout is None else monotonic() + self.timeout
        super().connect()
        if until is not None:
            self.timeout = max(until - monotonic(), _LEAST)  # the rest, for sending

    def _new_conn(self) -> socket.socket:
        """A connected socket. The host's addresses share the timeout, so that one may fail over to the next."""
        until = None if self.timeout is None else monotonic() + self.timeout
        try:
            addresses = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            failed = error if isinstance(error, socket.gaierror) else socket.gaierror("not a host name")
            raise NameResolutionError(self.host, self, failed) from failed
        last: OSError = OSError("no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            sock = _Socket(family, kind, protocol)
            try:
                if until is not None:
                    left = until - monotonic()
                    sock.settimeout(max(left / (len(addresses) - position), _LEAST))
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.connect(address)
            except OSError as error:
                sock.close()
                last = error
                continue
            if until is not None:
                sock.settimeout(max(until - monotonic(), _LEAST))
            return sock
        kind_of = ConnectTimeoutError if isinstance(last, TimeoutError) else NewConnectionError
        raise kind_of(self, "no address of the host could be connected to") from last


class _Connection(_TotalTimeout):
    pass


class _TLSConnection(_TotalTimeout, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class DeadlineAdapter(HTTPAdapter):
    """requests' adapter with pools of connections with a deadline; pass it ``urllib3.Timeout(total=...)``.

    Certificates are always verified: against ``ca_file`` (PEM), or the system's authorities if None. No retries.
    Raises OSError or ssl.SSLError if ``ca_file`` cannot be read.
    """

    def __init__(self, ca_file: str | None, hosts: int, connections: int) -> None:
        self._context = ssl.create_default_context(cafile=ca_file)
        self._context.sslsocket_class = _TLSSocket
        super().__init__(pool_connections=max(1, hosts), pool_maxsize=max(1, connections), max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        """Called by requests: sets up pools of our connections, with our TLS context."""
        super().init_poolmanager(connections, maxsize, block, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Called by requests to load CA certificates for each connection; a no-op, as our context has them."""
