"""Checkpoints of streaming queries, and whether they belong to the tables."""
