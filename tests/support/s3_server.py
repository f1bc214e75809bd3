"""An S3 server for tests: that of the demonstration."""

from examples.s3_server import BUCKET, ROOT, options, s3_server

__all__ = ["BUCKET", "ROOT", "options", "s3_server"]
