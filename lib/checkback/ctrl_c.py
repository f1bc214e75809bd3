"""Ctrl-C while a command runs, from its start to its end: KeyboardInterrupt, whatever libraries make of it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from logging import LogRecord
    from types import FrameType

#: seconds until it is heard again
_AGAIN_S = 0.02


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where Python alone would not bring it so far.

    - In the middle of an import it is heard after it: of libraries in C some abort the process otherwise.
    - An error afterwards is due to it: DuckDB and Arrow make their own errors of an exception that comes in a callback.
    - Once all else has ended it is ignored: Python then takes its modules apart, and would die of the signal.

    Handlers that take its place, as of queries, are in charge. Where Ctrl-C is ignored, as in the background, it stays
    so.
    """
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if not _imports(frame):
            heard.append(number)
            if "py4j" in sys.modules:  # it logs a traceback of what it passes on
                sys.modules["logging"].getLogger().addFilter(_is_no_interrupt)
            raise KeyboardInterrupt
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_no_interrupt(record: LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False
