"""Bodies of messages as typed values, by the settings ``topics`` (docs/queries.md)."""
