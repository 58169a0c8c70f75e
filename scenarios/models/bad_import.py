"""A model that can't be imported."""

import no_such_module  # noqa: F401
