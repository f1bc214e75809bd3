"""Tests of deciding and publishing."""
