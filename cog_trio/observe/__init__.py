"""The state of a service for monitoring."""
