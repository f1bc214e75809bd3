"""The journal: what is acknowledged is flushed to disk here, until it is in the tables."""
