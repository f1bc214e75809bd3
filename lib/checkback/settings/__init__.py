"""Settings: model, defaults, layers (files, environment, command line)."""

from checkback.settings.model import BASE_FILE, Dashboard, Gateway, Maintain, Producer, Settings, Storage, flatten
from checkback.urls import MASK

__all__ = ["BASE_FILE", "MASK", "Dashboard", "Gateway", "Maintain", "Producer", "Settings", "Storage", "flatten"]
