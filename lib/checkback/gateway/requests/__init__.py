"""The content of requests: decoded from JSON and Arrow, and the answers to it."""
