"""Tests of landing."""
