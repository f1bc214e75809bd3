"""The trace of a real broker, an example producer that answers its checks, and what becomes of the transactions."""
