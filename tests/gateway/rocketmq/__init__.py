"""Tests of the gateway's ports for RocketMQ's clients."""
