"""The dashboard: what the tables say and what an operator may do, as pages in a browser (docs/inspect.md)."""
