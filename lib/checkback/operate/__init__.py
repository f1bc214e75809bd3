"""Operator actions: resolve a pending transaction, cancel a scheduled message, resume a discarded one."""
