"""RocketMQ's transactional messages for a Delta lakehouse."""

#: a test keeps it equal to pyproject.toml's: looking it up there takes longer than all else until Ctrl-C is heard
__version__ = "0.1.0"
