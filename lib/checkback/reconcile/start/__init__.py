"""Preconditions of a start, and whether there is anything to do."""
