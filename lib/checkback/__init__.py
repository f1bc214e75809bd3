"""RocketMQ's transactional messages for a Delta lakehouse.

What people import is here, in `checkback.producer`, in `checkback.consumer` and, for notebooks, in `checkback.plots`;
all other modules are private. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.checkback import Checkback, Topic, load_settings
    from checkback.errors import CheckbackError, SettingsError, StateError, StorageError
    from checkback.query.answers import SparkNeededError, records
    from checkback.settings import Settings
    from checkback.spark.session import open_session

#: a test keeps it equal to pyproject.toml's: looking it up there takes longer than all else until Ctrl-C is heard
__version__ = "0.1.0"

__all__ = [
    "Checkback",
    "CheckbackError",
    "Settings",
    "SettingsError",
    "SparkNeededError",
    "StateError",
    "StorageError",
    "Topic",
    "__version__",
    "load_settings",
    "open_session",
    "records",
]

_WHERE = {
    **dict.fromkeys(("Checkback", "Topic", "load_settings"), "checkback.checkback"),
    **dict.fromkeys(("CheckbackError", "SettingsError", "StateError", "StorageError"), "checkback.errors"),
    **dict.fromkeys(("SparkNeededError", "records"), "checkback.query.answers"),
    "Settings": "checkback.settings",
    "open_session": "checkback.spark.session",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from checkback.errors import missing_module

    try:
        return getattr(import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        raise missing_module(error) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
