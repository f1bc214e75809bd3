"""Checks over HTTP: reads `check_requests`, writes `check_answers` and `op`."""
