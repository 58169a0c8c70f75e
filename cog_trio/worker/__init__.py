"""The worker process, which runs user code. The parent never imports it."""
