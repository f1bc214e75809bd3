"""Tests of `checkback maintain`."""
