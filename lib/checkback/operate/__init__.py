"""Operator actions: a pending transaction resolved by hand, a discarded message resumed."""
