"""Runs pushed groups until a signal."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from checkback.observe.logs import started
from checkback.push.pushed_group import PushedGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.settings import Settings

#: time between looks whether a URL may be tried again (s)
_LOOK_S = 0.05


def push(settings: Settings, groups: Sequence[str]) -> None:
    """Push the groups, each `push.GROUP` of the settings, until SIGTERM or Ctrl-C, which raises KeyboardInterrupt.

    Raises SettingsError, StorageError.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    running: list[PushedGroup] = []
    try:
        pushed = [PushedGroup(group, settings) for group in groups]
        for each in pushed:
            each.start()
            running.append(each)
            about = {"group": each.consumer.group, "topic": settings.push[each.consumer.group].topic}
            started(settings.log.format, "push", each.webhook.shown, **about)
        while not stop.wait(_LOOK_S):
            for each in running:
                each.resume()
    finally:
        closing = [threading.Thread(target=each.close, daemon=True) for each in running]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
