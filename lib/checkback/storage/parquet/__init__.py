"""Parquet files of tables, and their statistics."""
