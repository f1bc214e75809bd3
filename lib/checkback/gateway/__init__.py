"""HTTP gateway for half messages and ops. It needs no JVM and no Spark session.

``deduplication`` finds repeated half messages, without I/O or a clock; ``journal`` flushes acknowledged records to
disk; ``appender`` writes `half` and `op`; ``service`` connects them; ``http`` is the HTTP layer; ``server`` is the
command.
"""
