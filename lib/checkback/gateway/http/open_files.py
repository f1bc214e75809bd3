"""The process's limit of open files: clients' connections must leave some for the tables and the journal."""

from __future__ import annotations

import logging
from contextlib import suppress

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
