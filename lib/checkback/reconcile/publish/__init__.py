"""Publishing a batch: its rows, in all tables."""
