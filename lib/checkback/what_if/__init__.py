"""What-if: decides the recorded transactions again under other rules, in virtual time (docs/inspect.md)."""
