"""Whether a start is refused, and whether it has anything to do."""
