"""Uses the scope under the name that older releases gave it."""

import cog.server.scope
from cog import BaseRunner, current_scope, emit_metric
from cog.server.exceptions import CancelationException
from cog.server.scope import Scope
from cog.types import Input


class Runner(BaseRunner):
    def run(self, n: int = Input(default=1, ge=1)) -> dict:
        scope = cog.server.scope.current_scope()
        assert isinstance(scope, Scope)
        assert not issubclass(CancelationException, Exception)
        emit_metric("tokens.in", n)
        scope.record_metric("count", 1, mode="incr")
        scope.record_metric("count", 1.5, mode="increment")
        scope.metrics.record("steps", "a", "append")
        scope.metrics.record("steps", 2, "append")
        scope.metrics["gone"] = 1
        self.record_metric("gone", None)
        del scope.metrics["never"]
        refused = []
        for name, value in [("predict_time", 1), ("a..b", 1), ("x", float("nan")), ("x", object())]:
            try:
                scope.record_metric(name, value)
            except (TypeError, ValueError) as error:
                refused.append(type(error).__name__)
        return {"context": current_scope().context, "refused": refused}
