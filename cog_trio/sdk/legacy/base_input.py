"""`cog.base_input` of older releases: the class that all inputs of a model had in common."""

from cog_trio.sdk.model import BaseModel


class BaseInput(BaseModel, auto_dataclass=False):
    """The inputs of one prediction. Nothing of ours makes one."""
