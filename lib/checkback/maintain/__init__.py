"""Maintenance: small files become large ones, and what nobody needs any more goes."""
