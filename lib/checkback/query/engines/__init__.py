"""Engines that evaluate a query: DuckDB in this process, or Spark."""
