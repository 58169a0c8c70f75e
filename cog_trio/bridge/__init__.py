"""What parent and worker share: messages, their bytes, and a typed channel over any stream."""
