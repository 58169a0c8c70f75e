"""Counts its runs on ``self``, and shows what one run can see of the others."""

from typing import Any

from cog import BaseRunner, current_scope


class Runner(BaseRunner):
    def setup(self) -> None:
        print("loading")
        self.setups = getattr(self, "setups", 0) + 1
        self.runs = 0

    def run(self, name: str = "?", fail: bool = False, items: list[str] = []) -> dict[str, Any]:  # noqa: B006
        self.runs += 1
        items.append(name)
        print(f"run of {name}")
        current_scope().record_metric("name", name)
        if fail:
            raise ValueError(f"{name} fails")
        return {"setups": self.setups, "runs": self.runs, "items": items}
