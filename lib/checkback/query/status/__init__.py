"""`checkback status`: the state of reconcile, and groups that are stuck."""
