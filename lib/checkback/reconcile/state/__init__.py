"""The state of segments: stored, restored, and its timers."""
