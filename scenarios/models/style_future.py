"""Annotations as text, and a type that only a type checker can import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

from cog import BaseRunner, Input, Opaque, Path

if TYPE_CHECKING:
    from a_library_of_the_client import Conversation


class Runner(BaseRunner):
    def run(
        self,
        talk: Annotated[Conversation, Opaque],
        picture: Optional[Path] = Input(default=None, description="A picture"),
        count: int = 2,
    ) -> dict[str, Any]:
        return {
            "talk": talk,
            "picture": None if picture is None else [type(picture).__name__, picture.read_text()],
            "count": count,
        }
