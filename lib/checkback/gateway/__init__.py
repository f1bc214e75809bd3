"""The gateway: the HTTP door through which producers send half messages and ops. No JVM, no Spark session.

``deduplication`` decides, without I/O or a clock; ``group_commit`` batches requests into commits; ``tables`` appends
them; ``service`` wires them together; ``api`` is the HTTP layer; ``run`` is the command.
"""
