"""What user code prints, and which run it belongs to."""
