"""Operator actions."""
