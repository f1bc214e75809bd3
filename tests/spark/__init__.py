"""Tests of checkback.spark."""
