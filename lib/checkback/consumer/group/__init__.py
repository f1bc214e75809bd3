"""Consumer groups: members, positions, lag, and their table."""
