"""The worker as a process: its start and end, its two threads, its guardian."""
