"""What if: the recorded transactions decided again under other rules, in virtual time (docs/inspect.md)."""
