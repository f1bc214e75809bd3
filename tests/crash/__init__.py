"""Crashes: at every named point, by kill -9 at random moments, by a full disk, by a second process."""
