"""`CancelationException`, which ends a cancelled sync ``run``; also `cog.exceptions`, which Cog only documents."""


class CancelationException(BaseException):
    """Raised inside a sync ``run`` when its prediction is cancelled.

    Not an `Exception`, so that a model's ``except Exception`` does not swallow the cancellation. Async models get
    `asyncio.CancelledError`.
    """


CancelationException.__module__ = "cog"
