"""RocketMQ 5 clients: their gRPC interface for producers, in front of the gateway's own service."""
