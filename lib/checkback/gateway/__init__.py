"""The gateway: half messages and ops from producers over HTTP. No JVM, no Spark session.

``deduplication`` knows what came before, without I/O or a clock; ``journal`` flushes to disk what is acknowledged;
``appender`` writes `half` and `op`; ``service`` wires all; ``http`` is the HTTP layer, ``server`` the command.
"""
