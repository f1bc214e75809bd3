"""The journal: acknowledged records, flushed to disk, until they are in the tables."""
