"""Tests of checkback.settings."""
