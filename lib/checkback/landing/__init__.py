"""Half and op messages from files and Kafka into `half` and `op`."""
