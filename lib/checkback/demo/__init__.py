"""The demonstration that `make run` shows: a trace of a real broker, an example producer, and what becomes of it."""
