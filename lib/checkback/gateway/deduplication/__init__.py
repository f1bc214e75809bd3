"""Known half messages: the cache, and lookups in the tables."""
