"""What evaluates a question: DuckDB in this process, or Spark."""
