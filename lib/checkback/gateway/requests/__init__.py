"""The content of requests: decoded from JSON, and in flight."""
