"""`coglet._sdk.current_scope`, for models that took it from there."""

from cog_trio.sdk.scope import MetricRecorder, Scope, current_scope

__all__ = ["MetricRecorder", "Scope", "current_scope"]
