"""The page at ``/docs``: a form for the model, in a browser."""
