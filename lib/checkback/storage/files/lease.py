"""Mutual exclusion between processes on tables in an object store, where no file lock works: a lease.

It is an object that its holder renews, each time on condition that nobody else has written it since (its ETag). A
process that dies leaves it behind; `TTL_S` after the last renewal, by the store's own clock, another may take it. Who
comes earlier waits for that, and is refused as soon as the lease is renewed: its holder lives. A holder goes by its own
clock from before each renewal on, so it knows that its time is over before anybody else does: even one that was stopped
(SIGSTOP, a suspended machine) writes nothing more when it wakes up.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import PreconditionError

from checkback.errors import FencedError, StorageError
from checkback.storage.files.object_store import create, open_store, os_errors

if TYPE_CHECKING:
    from collections.abc import Callable

#: Life of a lease after its last renewal, and interval between renewals (s).
TTL_S, RENEW_S = 30.0, 5.0
#: The holder's time ends this much earlier (s): a commit that it has begun is then sent.
_MARGIN_S = 5.0
#: how often somebody who waits for its end looks whether it was renewed, or given back (s)
_LOOK_S = 1.0

_log = logging.getLogger(__name__)


def boot_time() -> float:
    """Seconds of a clock that nobody sets, and that also runs while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def new_holder() -> str:
    """This process as a new holder of a lease or a lock: "process 12 on host", and a second line that no other has.

    In a container that is started again the host's name and the process's number are the same.
    """
    return f"process {os.getpid()} on {socket.gethostname()}\n{uuid.uuid4().hex}"


def shown(holder: str) -> str:
    """A holder as people know it."""
    return holder.partition("\n")[0]


@dataclass(frozen=True)
class LeaseState:
    """The object as read. ``holder``: who holds it, empty = it was released. ``attempt``: unique for each write."""

    holder: str
    attempt: str
    etag: str
    written: datetime


#: in place of an object that is gone
_NOBODY = LeaseState("", "", "", datetime.fromtimestamp(0, timezone.utc))


class Lease:
    """A lease that this process holds as ``holder`` at the URI ``place``, renewed by a thread until `release`."""

    def __init__(
        self,
        place: str,
        clock: Callable[[], float] = boot_time,
        now: Callable[[str], datetime] | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take the lease at the URI ``place``, at the latest when that of a process that has died ends.

        ``clock``: s; ``now``: the store's time; ``pause``: waits for some seconds by ``clock``.

        Raises FencedError if another process holds it and renews it, StorageError if the store cannot be reached.
        """
        self.place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._until = 0.0
        self._etag: str | None = None
        self._lost: FencedError | None = None
        #: what was sent without an answer, and when: one of these may be the object now
        self._unanswered: dict[str, float] = {}
        self.holder = new_holder()
        found = read_lease(place)
        if found is not None:
            if found.holder and (age := ((now or store_time)(place) - found.written).total_seconds()) < TTL_S:
                found = self._awaited(found, TTL_S - age, pause)
            self._etag = None if found is None else found.etag
        if not self._write(self.holder):
            there = read_lease(place)
            raise _held("another process" if there is None else there.holder, place)
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def _awaited(self, held: LeaseState, left_s: float, pause: Callable[[float], object]) -> LeaseState | None:
        """The lease, when it has ended or was given back; None: it is gone. Raises FencedError if it was renewed."""
        _log.warning(
            "%s holds the lease of these tables (%s): if it was killed, this start goes on in %.0f s",
            shown(held.holder),
            self.place,
            left_s,
        )
        until = self._clock() + left_s
        while (left_s := until - self._clock()) > 0:
            pause(min(left_s, _LOOK_S))
            found = read_lease(self.place)
            if found is None or not found.holder:
                return found
            if found.attempt != held.attempt:
                raise _held(found.holder, self.place)
        return held

    def start(self) -> None:
        """Begin to renew it."""
        self._thread.start()

    def confirm(self) -> None:
        """Check that this process still holds the lease, by its own clock; one that ran out is renewed if it still may.

        Raises FencedError if another process has taken it, StorageError if the store cannot be reached.
        """
        if self._clock() >= self._until:
            self.renew()
        if self._lost is not None:
            raise self._lost

    def renew(self) -> None:
        """Renew it now. Raises StorageError if the store cannot be reached; `confirm` raises if it is lost."""
        with self._lock:
            if self._lost is None and not self._ended.is_set() and not self._write(self.holder):
                self._lost = FencedError(
                    "another process has taken over the work on these tables: this one did not renew its lease in time",
                    self.place,
                    "let the other one work; if this one was stopped or suspended, leave it ended",
                )

    def release(self) -> None:
        """Give it back, so that the next process need not wait. Never raises."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock, suppress(StorageError):
            if self._lost is None:
                self._write("")

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_S):
            self._try_to_renew()

    def _try_to_renew(self) -> None:
        try:
            self.renew()
        except StorageError as error:  # its time may suffice for the next attempt
            _log.warning("the lease cannot be renewed: %s", error)

    def _write(self, holder: str) -> bool:
        """Write the object if nobody else has since; False if somebody has. Raises StorageError."""
        attempt = uuid.uuid4().hex
        while True:
            self._unanswered[attempt] = self._clock()
            found = self._put(json.dumps({"holder": holder, "attempt": attempt}).encode())
            # A request that was done and answered with an error is repeated, by the store's client or by the next
            # renewal, and meets its own object.
            began = self._unanswered.get(attempt if found is None else found.attempt)
            if began is None:
                return False
            if found is not None:
                self._etag = found.etag
            if found is None or found.attempt == attempt:
                self._until = began + TTL_S - _MARGIN_S
                self._unanswered.clear()
                return True

    def _put(self, content: bytes) -> LeaseState | None:
        """Write the object if it is as last seen, else the one that is there. Raises StorageError."""
        store, key = open_store(self.place)
        try:
            with os_errors(self.place):
                try:
                    if self._etag is None:
                        self._etag = create(self.place, content)
                    else:
                        self._etag = obstore.put(store, key, content, mode={"e_tag": self._etag})["e_tag"]
                except (FileExistsError, PreconditionError):
                    return read_lease(self.place) or _NOBODY
        except OSError as error:
            raise StorageError(f"the lease cannot be written: {error}", self.place) from error
        return None


def read_lease(place: str) -> LeaseState | None:
    """The lease at a URI; None if there is none. Raises StorageError."""
    try:
        with os_errors(place):
            found = obstore.get(*open_store(place))
            content = json.loads(bytes(found.bytes()))
        etag = found.meta["e_tag"]
        return LeaseState(content["holder"], content["attempt"], etag or "", found.meta["last_modified"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"the lease cannot be read: {error}", place) from error
    except (ValueError, KeyError, TypeError) as error:
        fix = "if no process works on these tables, delete it: a copy of a folder has the folder's lock file there"
        raise StorageError("is no lease", place, fix) from error


def holder_of(place: str) -> str:
    """Who holds the lease at a URI (`new_holder`); empty if nobody does. Raises StorageError.

    Unless it was renewed just now by this machine's clock, by the store's, for which an object is written; who may not
    write there goes by this machine's.
    """
    found = read_lease(place)
    if found is None or not found.holder:
        return ""
    age_s = time.time() - found.written.timestamp()
    if not 0 <= age_s < 2 * RENEW_S:
        with suppress(StorageError):
            age_s = (store_time(place) - found.written).total_seconds()
    return found.holder if age_s < TTL_S else ""


def store_time(place: str) -> datetime:
    """The object store's time: when it says that it has written an object just now. Raises StorageError."""
    store, key = open_store(f"{place}.{uuid.uuid4().hex}")
    try:
        with os_errors(place):
            obstore.put(store, key, b"")
            try:
                return obstore.head(store, key)["last_modified"]
            finally:
                with suppress(FileNotFoundError):  # done, answered with an error, and repeated
                    obstore.delete(store, key)
    except OSError as error:
        raise StorageError(f"cannot be written: {error}", place) from error


def _held(holder: str, place: str) -> FencedError:
    return FencedError(
        f"{shown(holder)} is already working on these tables",
        place,
        "let it work, or stop it and run again: one is enough",
    )
