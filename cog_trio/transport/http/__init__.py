"""The prediction API over HTTP."""
