"""State of segments: storage, restoration, timers."""
