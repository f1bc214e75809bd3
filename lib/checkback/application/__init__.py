"""Runs the queries `reconcile` and `check` as one Spark application; rebuild; what `make install` prefetches."""
