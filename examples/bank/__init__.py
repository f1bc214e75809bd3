"""A bank transfer between two services, each with a database of its own."""
