"""The socket that a server of ours listens on, and how many connections the limit of open files leaves it."""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager, suppress
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


#: files that the process itself has open at most: tables, journal, libraries, requests to an object store
RESERVED = 256
_log = logging.getLogger("checkback.gateway")


def connections_within(most: int) -> int:
    """How many of ``most`` connections may be open. The process's limit is raised as far as they need, and it may be.

    Fewer, which is logged, if that does not suffice. At least one.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return most
    needed = most + RESERVED
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        limit = needed if highest == resource.RLIM_INFINITY else min(needed, highest)
        with suppress(ValueError, OSError):  # some systems know a lower one
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, highest))
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return most
    room = max(1, limit - RESERVED)
    _log.warning("%s connections at most, not %d: the limit of open files is %d (ulimit -n)", room, most, limit)
    return room
