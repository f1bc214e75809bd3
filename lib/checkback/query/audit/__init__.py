"""The audit: verifies the promises of the protocol against the tables (docs/inspect.md)."""
