"""Errors that reach a user: one line each, saying what is wrong, where, and the mend."""

from __future__ import annotations


class TinyLLMError(Exception):
    """Base of the errors that the command line prints without a traceback.

    `exit_code` is the status with which the `tinyllm` command ends.
    """

    exit_code = 2


class InputError(TinyLLMError):
    """A wrong file, row or option. The message names it and says what to do instead."""

    exit_code = 2


class IncompleteRunError(TinyLLMError):
    """The run started, but its result is incomplete (stalled, interrupted, disk full) or a gate failed."""

    exit_code = 1
