"""HTTP: the protocol, the routes and their description, and what a request may be."""
