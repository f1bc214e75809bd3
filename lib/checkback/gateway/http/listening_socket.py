"""The socket that a server of ours listens on."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BACKLOG = 2048


@contextmanager
def listening(host: str, port: int, section: str) -> Iterator[socket.socket]:
    """The socket, closed at the end. ``section``: of the settings, whose ``host`` and ``port`` these are.

    Raises SettingsError if there is no such address or it is in use: uvicorn's own logs that, and ends the process.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(
            f"{host}: {error.strerror}", f"{section}.host", "name an address of this machine"
        ) from error
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError as error:
            what = f"cannot listen: {error.strerror}"
            raise SettingsError(what, f"{host}:{port}", f"choose another {section}.port") from error
        yield sock
