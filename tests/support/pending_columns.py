"""The columns of `query.pending`, as its docstring promises them."""

COLUMNS = (
    "queue_id",
    "queue_offset",
    "transaction_id",
    "producer_group",
    "real_topic",
    "born_timestamp",
    "age_s",
    "check_times",
    "last_outcome",
    "last_error",
    "last_endpoint",
    "last_answered_at",
    "next_check_at",
    "op_waiting",
    "op_landed_at",
    "why",
    "as_of",
)
