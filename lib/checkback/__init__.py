"""Checkback."""
