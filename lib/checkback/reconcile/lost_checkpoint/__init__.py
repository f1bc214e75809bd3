"""An interrupted batch without its checkpoint: found and completed."""
