"""When and how a cancel is raised in user code."""
