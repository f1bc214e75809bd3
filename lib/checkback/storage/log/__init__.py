"""Log of a Delta table: read, follow, commit."""
