"""HTTP: the protocol, the routes, and what a request may be."""
