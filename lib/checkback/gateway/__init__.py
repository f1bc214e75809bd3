"""The gateway: the HTTP door through which producers send half messages and ops. No JVM, no Spark session.

``ledger`` decides and knows neither I/O nor a clock; ``committer`` gathers requests into commits; ``store`` is the
tables; ``door`` ties them; ``api`` speaks HTTP; ``run`` is the command.
"""
