"""Which half messages are known: the cache, and lookups in the tables."""
