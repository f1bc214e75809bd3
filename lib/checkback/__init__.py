"""RocketMQ's transactional messages for a Delta lakehouse."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("checkback")
except PackageNotFoundError:
    # In checkback.zip, which has no metadata. A test keeps it equal to pyproject.toml's.
    __version__ = "0.1.0"
