"""What the tables say: answers.Answers on DuckDB or Spark, frames.Frames as Spark DataFrames (docs/inspect.md)."""
