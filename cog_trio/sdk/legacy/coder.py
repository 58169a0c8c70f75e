"""`Coder`, for models that import it. Neither Cog's schema generator nor its runtime ever called one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Coder(ABC):
    """Turns values of a type into JSON objects and back."""

    _registered: ClassVar[list[type[Coder]]] = []

    @staticmethod
    def register(cls: type[Coder]) -> None:  # noqa: PLW0211, RUF100 - the argument's name is Cog's
        """Make a coder known to `lookup`."""
        if cls not in Coder._registered:
            Coder._registered.append(cls)

    @staticmethod
    def lookup(tpe: type) -> Coder | None:
        """A coder for a type: of the first class whose ``factory`` makes one."""
        for cls in Coder._registered:
            coder = cls.factory(tpe)
            if coder is not None:
                return coder
        return None

    @staticmethod
    @abstractmethod
    def factory(tpe: type) -> Coder | None: ...

    @abstractmethod
    def encode(self, x: Any) -> dict[str, Any]: ...

    @abstractmethod
    def decode(self, x: dict[str, Any]) -> Any: ...
