"""`PredictionService`: sole owner of predictions, and everything that a client may ask of it."""
