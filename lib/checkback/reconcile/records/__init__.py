"""NumPy records of events, state and actions."""
