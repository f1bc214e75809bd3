"""`checkback status`: whether reconcile is at work, and which groups are stuck."""
