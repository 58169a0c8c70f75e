"""The inputs of a request against the model's document."""
