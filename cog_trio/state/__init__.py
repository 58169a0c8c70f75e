"""What is true of a prediction and of a service, as pure objects: no I/O, no tasks."""
