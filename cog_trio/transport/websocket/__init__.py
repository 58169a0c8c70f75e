"""Predictions over a WebSocket."""
