"""The user's model: loading, inputs and outputs as values, health check, tracebacks."""
