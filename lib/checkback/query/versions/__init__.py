"""Table versions to read: now, as of a time, as of a batch."""
