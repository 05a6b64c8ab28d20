"""Text out of a stream of token ids: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinyllm.engine.tokenizer import Tokenizer

_BROKEN: Final = "\ufffd"


class IncrementalDetokenizer:
    """Decodes one output token by token; the pieces join to exactly `tokenizer.decode` of all of them.

    Only a window of the last few tokens is decoded again::

        │◄─ context ─►│◄─ open: the text may still change ─►│
        │◄────────────────── _window ──────────────────────►│

    The context is there since a token's text can depend on whether another one stands before it (the first
    one may lose its leading space). A token is a handful of bytes, so the cost of each is constant.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""
        self._text = ""

    def add(self, token_id: int) -> str:
        """Take in a token; return the text that is now certain, often that token's, sometimes none."""
        if self._tokenizer.is_silent(token_id):
            return ""
        self._window.append(token_id)
        if token_id in self._tokenizer.byte_token_ids:
            # A run of these is decoded as a whole: one bad byte breaks the characters before it too.
            return ""
        before = self._text
        self._text = self._tokenizer.decode(self._window)
        if not self._text.endswith(_BROKEN):
            return self._settle(self._text, len(self._window))
        num_before = len(self._window) - 1
        if num_before > self._num_context and self._text == before + self._tokenizer.decode([token_id]):
            # What was open before has ended broken, and no later byte can mend it. Not so the newest token.
            return self._settle(before, num_before)
        return ""

    def finish(self) -> str:
        """No token will follow: the text that was still open."""
        rest = self._tokenizer.decode(self._window)[len(self._context_text) :]
        self._window, self._num_context, self._context_text, self._text = [], 0, "", ""
        return rest

    def _settle(self, text: str, num_settled: int) -> str:
        """Make the first `num_settled` tokens of the window, whose text is `text`, the new context."""
        new_text = text[len(self._context_text) :]
        del self._window[: self._num_context]
        self._num_context = num_settled - self._num_context
        self._context_text = self._text = self._tokenizer.decode(self._window[: self._num_context])
        if len(self._window) > self._num_context:
            self._text = self._tokenizer.decode(self._window)
        return new_text


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may turn out to begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def add(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """Take in new text.

        Args:
            may_stop: False lets a stop string that this text completes pass as ordinary text.

        Returns:
            The text that may be shown, and the stop string that has been met, or None.
        """
        if not self._stop:
            return text, None
        num_held = len(self._held)
        text = self._held + text
        self._held = ""
        if may_stop:
            # Only a match that the new text completes counts, and the earliest one.
            starts = [(text.find(s, max(0, num_held - len(s) + 1)), s) for s in self._stop]
            found = min(
                (match for match in starts if match[0] >= 0), key=lambda match: match[0], default=None
            )
            if found is not None:
                return text[: found[0]], found[1]
        num_held = max(_overlap(text, s) for s in self._stop)
        split = len(text) - num_held
        self._held = text[split:]
        return text[:split], None

    def finish(self) -> str:
        """No text will follow: what was held back began nothing."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
