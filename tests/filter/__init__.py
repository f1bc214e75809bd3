"""Message filters."""
