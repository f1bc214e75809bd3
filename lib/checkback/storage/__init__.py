"""Delta tables, their logs and commits, Parquet files, checkpoints, locks, fsync."""
