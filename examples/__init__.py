"""Whole programs on Checkback: `python -m examples.bank` (what `make run` shows) and `python -m examples.trace`."""
