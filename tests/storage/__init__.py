"""Tests of checkback.storage."""
