"""Tests of checkback.messages."""
