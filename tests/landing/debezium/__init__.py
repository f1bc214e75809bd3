"""Events of Debezium, and how they were recorded."""
