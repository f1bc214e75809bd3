"""Lands half messages and ops from files, Kafka and Delta tables in `half` and `op`."""
