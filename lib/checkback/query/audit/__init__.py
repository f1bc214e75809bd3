"""The audit: whether the tables keep the promises of the protocol (docs/inspect.md)."""
