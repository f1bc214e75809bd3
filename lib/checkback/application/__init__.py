"""Runs the queries `reconcile` and `check` in one Spark application; rebuild; prefetch of `make install`."""
