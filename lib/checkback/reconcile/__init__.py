"""The protocol: `segment` decides, a stateful query runs it, batches publish the decisions."""
