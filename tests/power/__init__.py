"""Power cuts: what the tables and checkpoints are after them, and that every start goes on from it."""
