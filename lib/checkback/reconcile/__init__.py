"""The protocol: `segment` decides; a stateful query runs it; batches publish what it decided."""
