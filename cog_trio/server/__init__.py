"""The entry of a container."""
