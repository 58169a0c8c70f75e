"""HTTP as a client, and which hosts and URLs are allowed."""
