"""Tests of `checkback push`."""
