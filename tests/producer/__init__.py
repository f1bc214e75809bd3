"""Tests of checkback.producer."""
