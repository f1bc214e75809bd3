"""The log of a Delta table: read, followed, committed to."""
