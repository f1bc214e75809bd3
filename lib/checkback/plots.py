"""Plots and tables for notebooks from the results of `Checkback`; needs matplotlib (``checkback[notebook]``)."""

from checkback.query.plots import ages, decisions, incident, latency, outcomes, pending
from checkback.query.shown_rows import busiest, table
from checkback.what_if.plot import changes_table, groups_table
from checkback.what_if.plot import plot as what_if

__all__ = [
    "ages",
    "busiest",
    "changes_table",
    "decisions",
    "groups_table",
    "incident",
    "latency",
    "outcomes",
    "pending",
    "table",
    "what_if",
]
