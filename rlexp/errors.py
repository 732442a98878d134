"""Errors a user can cause. The command line prints their message without a traceback and exits with 1."""


class RlexpError(Exception):
    """Something the user can mend. The message says what was wrong, where, and what would be right."""


class ConfigError(RlexpError):
    """A key, value or combination of components that cannot be composed into a run."""


class EnvError(RlexpError):
    """An environment that is unknown, not installed, or does not fit the algorithm."""


class UnknownEnvError(EnvError):
    """An id that nobody has registered."""


class DivergedError(RlexpError):
    """Training whose losses or actions are no numbers any more."""


class DataError(RlexpError):
    """A dataset that cannot be read or does not fit the environment."""


class CheckpointError(RlexpError):
    """A checkpoint that is missing, damaged, of another format or of another run."""


class RunError(RlexpError):
    """A run directory in a state that forbids what was asked."""


class UntrustedError(RlexpError):
    """A loaded file asks for code that the user has not named as trusted."""


class ExportError(RlexpError):
    """A policy that cannot be written in the format that was asked for."""


def counted(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``12,346 rows``."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
