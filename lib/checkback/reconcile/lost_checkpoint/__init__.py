"""Finds and completes an interrupted batch without its checkpoint."""
