"""Tests of checkback.check."""
