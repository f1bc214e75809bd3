"""A standalone Spark cluster whose processes are killed: `make test-cluster`."""
