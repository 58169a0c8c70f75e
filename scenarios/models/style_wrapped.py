"""Inherits a run that is wrapped and stands in another file."""

from style_base import Base


class Runner(Base):
    name = "child"
