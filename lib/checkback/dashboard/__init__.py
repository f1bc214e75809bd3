"""Dashboard in a browser: pages about the tables, and operator actions (docs/inspect.md)."""
