"""Files in local folders, object stores and HDFS: flush, copy, lease."""
