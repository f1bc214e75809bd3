"""A shop with PostgreSQL and an outbox table, copied into a Delta table that `checkback land --table` reads."""
