"""Messages to the parent, from any thread."""
