"""What a running application tells: log events and Prometheus metrics. Nothing here may fail a batch."""
