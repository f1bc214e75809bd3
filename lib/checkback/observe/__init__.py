"""Log events and Prometheus metrics of a running application. Nothing here may fail a batch."""
