"""Queries on the tables: answers.Answers on DuckDB or Spark, frames.Frames as Spark DataFrames (docs/inspect.md)."""
