"""One family of exceptions; each carries the exit code of the command line and, if known, a cure."""

from __future__ import annotations

EXIT_OK = 0
EXIT_INPUT = 2
EXIT_NETWORK = 3
EXIT_ENGINE = 4
EXIT_REFUTED = 10
EXIT_INCONCLUSIVE = 11
EXIT_NOT_DRAFTED = 12
EXIT_INTERRUPTED = 130


class AdvisorError(Exception):
    """Base of everything this package raises on purpose.

    Args:
        message: one sentence: what is wrong, with which file or name.
        hint: what to do about it, one sentence, or None.
    """

    exit_code = EXIT_INPUT

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class InputError(AdvisorError):
    """An argument, option or table that cannot be used."""


class ModelFileError(InputError):
    """A file that is not a usable model: wrong kind, damaged, truncated or hostile."""


class UnknownModelError(InputError):
    """A name that is neither a file, nor in the catalogue, nor a Hub repository."""


class UnknownHardwareError(InputError):
    """A machine that no profile describes."""


class HubError(AdvisorError):
    """The Hugging Face Hub could not be reached, or refused."""

    exit_code = EXIT_NETWORK


class EngineError(AdvisorError):
    """llama.cpp could not be found, started or kept alive."""

    exit_code = EXIT_ENGINE


class NotDraftedError(EngineError):
    """The engine ran but drafted nothing, so the run says nothing about speculation."""

    exit_code = EXIT_NOT_DRAFTED


class CancelledError(AdvisorError):
    """Long work was stopped by its caller."""

    exit_code = EXIT_INTERRUPTED
