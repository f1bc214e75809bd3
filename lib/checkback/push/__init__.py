"""Webhooks: consumer groups that post their messages as signed CloudEvents (docs/webhooks.md)."""
