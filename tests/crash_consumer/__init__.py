"""Consumers of a group, killed, stopped and restarted at random while batches are published: what they promise."""
