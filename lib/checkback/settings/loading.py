"""Loads settings: merges the layers and records each value's origin."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.settings.layers import read_layers
from checkback.settings.model import Settings, flatten

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Loaded:
    """Settings and their origins.

    ``origins`` has every dotted key of ``settings``: "default", a file's path, an environment variable, or "--set".
    """

    settings: Settings
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """The origin of a dotted key's value."""
        return self.origins.get(key, "default")


#: sections whose secrets are not needed to look at tables, or to work on them
SECRETS_OF_OTHERS = frozenset({"producers", "kafka", "dashboard"})


def load(
    config: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    unneeded: Collection[str] = (),
) -> Loaded:
    """Load the settings from all layers.

    ``config`` is the file of ``--config``, ``overrides`` are ``KEY=VALUE``, ``environ`` replaces os.environ. A secret
    of the sections ``unneeded`` whose variable (``env:NAME``) is unset is left out; elsewhere that is an error.
    Raises SettingsError, in one line: the problem, key and layer, and the fix. It never shows a secret.
    """
    environ = os.environ if environ is None else environ
    settings, origins = read_layers(Settings, config, overrides, environ, unneeded)
    return Loaded(settings, {key: origins.get(key, "default") for key in flatten(settings)})
