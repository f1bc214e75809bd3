"""Files: local folders, object stores, HDFS; flushed, copied, leased."""
