"""One run: its inputs, its stages, its output."""
