"""`cog.server.errors` of older releases."""


class CogServerError(Exception):
    """Base of the server's errors."""


class FileUploadError(CogServerError):
    """An output file could not be uploaded."""


class RunnerBusyError(CogServerError):
    """A prediction is running already."""


class UnknownPredictionError(CogServerError):
    """There is no prediction of that id."""


class CogRuntimeError(CogServerError):
    """The runtime failed."""


class CogTimeoutError(CogServerError):
    """It took too long."""
