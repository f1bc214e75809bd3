"""Settings as a command loads them: the layers, merged, and where each value came from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.settings.layers import read_layers
from checkback.settings.model import Settings, flatten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Loaded:
    """Settings and where each came from.

    ``origins`` has every dotted key of ``settings``: "default", a file's path, an environment variable, or "--set".
    """

    settings: Settings
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Where a dotted key's value came from."""
        return self.origins.get(key, "default")


def load(config: Path | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Loaded:
    """The settings of all layers.

    ``config`` is the file of ``--config``, ``overrides`` are ``KEY=VALUE``, ``environ`` stands in for os.environ.
    Raises SettingsError, in one line: what is wrong, in which key and layer, what to do. It never shows a secret.
    """
    settings, origins = read_layers(Settings, config, overrides, os.environ if environ is None else environ)
    return Loaded(settings, {key: origins.get(key, "default") for key in flatten(settings)})
