"""What the routes are made of: router, bodies, headers, access, events."""
