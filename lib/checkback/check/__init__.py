"""Check-backs over HTTP: requests from `check_requests`, answers into `check_answers` and `op`."""
