"""The gateway: half messages and ops from producers over HTTP. No JVM, no Spark session.

``deduplication`` decides, without I/O or a clock; ``journal`` flushes to disk what is acknowledged; ``tables`` appends
to `half` and `op`; ``service`` wires them together; ``http`` is the HTTP layer; ``run`` is the
command.
"""
