"""Runs pushed groups until a signal."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from checkback.errors import missing_module
from checkback.observe.logs import started
from checkback.push.pushed_group import PushedGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from checkback.settings import Settings

#: time between looks whether a URL may be tried again (s)
_LOOK_S = 0.05


def push(settings: Settings, groups: Sequence[str], metrics_port: int | None = None) -> None:
    """Push the groups, each `push.GROUP` of the settings, until SIGTERM or Ctrl-C, which raises KeyboardInterrupt.

    ``metrics_port``: of the consumers' metrics; None: they are not served. Raises SettingsError, StorageError.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    running: list[PushedGroup] = []
    serving = ExitStack()
    try:
        pushed = [PushedGroup(group, settings) for group in groups]
        if metrics_port is not None:
            serving.enter_context(_metrics(settings, pushed, metrics_port))
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
        serving.close()


def _metrics(settings: Settings, pushed: Sequence[PushedGroup], port: int) -> AbstractContextManager[int]:
    try:
        from checkback.consumer.metrics import registry_of, unready
        from checkback.observe.metrics_server import served
    except ModuleNotFoundError as error:
        raise missing_module(error, "metrics", "--metrics-port") from error
    consumers = [each.consumer for each in pushed]
    fix = "choose a free port, and an address of this machine in metrics.host"
    return served(registry_of(consumers, settings), settings.metrics.host, port, fix, lambda: unready(consumers))
