"""HTTP layer: the protocol, the routes and their description, limits of a request."""
