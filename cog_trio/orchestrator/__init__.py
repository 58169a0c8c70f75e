"""The parent's side of its worker processes: one pool, one handle a worker, one run a slot."""
