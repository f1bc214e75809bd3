"""Publishes a batch: writes its rows to all tables."""
