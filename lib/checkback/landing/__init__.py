"""Lands half messages and ops from files and Kafka in `half` and `op`."""
