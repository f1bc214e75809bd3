"""Tests of `checkback.what_if`."""
