"""Types that say what may come: Enum, Literal, TypedDict of typing_extensions, unions, secrets."""

from enum import Enum, IntEnum
from typing import Any, List, Literal, Optional, Union

from cog import BaseModel, BaseRunner, Input, Secret
from typing_extensions import NotRequired, TypedDict


class Color(str, Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Message(TypedDict):
    role: str
    text: NotRequired[str]


class Seen(BaseModel):
    types: dict[str, str]
    values: Any
    color: Optional[Color] = None


class Runner(BaseRunner):
    def run(
        self,
        messages: List[Message],
        color: Color = Color.RED,
        sizes: List[Size] = Input(default=[Size.SMALL]),
        mode: Literal["fast", "slow"] = "fast",
        either: Union[str, float, None] = None,
        keys: List[Secret] = Input(default=[]),
        seed: int = Input(default=None),
        scale: float = Input(default=1, ge=0),
    ) -> Seen:
        print(keys)
        given = dict(locals())
        given.pop("self")
        types = {name: type(value).__name__ for name, value in given.items()}
        return Seen(types=types, values=given, color=color)
