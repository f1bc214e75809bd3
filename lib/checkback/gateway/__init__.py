"""The gateway: the HTTP door through which producers send half messages and ops. No JVM, no Spark session.

``deduplication`` decides and knows neither I/O nor a clock; ``group_commit`` gathers requests into commits; ``tables``
appends them; ``service`` ties them; ``api`` speaks HTTP; ``run`` is the command.
"""
