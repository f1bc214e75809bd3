"""Settings: model, defaults, layers (files, environment, command line)."""

from checkback.settings.model import BASE_FILE, MASK, Dashboard, Gateway, Maintain, Producer, Settings, Storage, flatten

__all__ = ["BASE_FILE", "MASK", "Dashboard", "Gateway", "Maintain", "Producer", "Settings", "Storage", "flatten"]
