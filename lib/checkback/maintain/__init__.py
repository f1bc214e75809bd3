"""Maintenance: compacts small files, and removes old files and log entries."""
