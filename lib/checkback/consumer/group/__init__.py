"""Consumer groups: members, positions, lag, and the table that keeps them."""
