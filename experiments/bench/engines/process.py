"""An engine's child process, seen from its parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from experiments.bench.engines import engine_class, engine_path
from experiments.bench.engines.base import environment_of
from experiments.bench.engines.options import EngineOptions
from experiments.bench.jobs import Job, JobResult
from tinyllm.bridge.environment import ROOT
from tinyllm.errors import IncompleteRunError, InputError

_WAKE_SECONDS: Final = 0.5
"""How often a wait for an answer looks for signals."""

_READ_BYTES: Final = 1 << 16
"""As many as a pipe holds."""

GRACE_SECONDS: Final = 10.0
"""For a child that was told to end, before it is killed."""


class EngineProcess:
    """An engine with a model, in a process of its own as long as the context lasts::

        with EngineProcess("tinyllm", model, {"num_gpu_blocks": 200}) as engine:
            result = engine.run(job)

    Entered, the model is loaded. Left, the process and all that it started are gone, however it is left.

    Args:
        name: of an engine (`experiments.bench.engines.ENGINES`), or `module:Class`.
        model: a local Hugging Face directory.
        options: of `EngineOptions`, by name.

    Attributes:
        info: what the child says of its engine once it is ready: `EngineInfo`, the options, the time of loading.
        command: what was started.

    Raises:
        InputError: an unknown engine or option, the engine's environment is missing, or it refuses an option.
        IncompleteRunError: the child ended, or said what is no answer; the message names the file that has what it
            wrote to standard error.
    """

    def __init__(self, name: str, model: str | Path, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        chosen = EngineOptions.of(options or {})
        kind = engine_class(name)
        worker = [kind.python(chosen), "-m", "experiments.bench.engines.worker"]
        what = [engine_path(name), Path(model).absolute(), "--options", chosen.to_json()]
        self.command = [str(word) for word in (*worker, *what)]
        self._variables = environment_of(chosen) | dict(kind.environment(chosen))
        self._child: subprocess.Popen[str] | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        errors, self._errors = tempfile.mkstemp(
            prefix=f"tinyllm-bench-{self.name.rpartition(':')[2]}-", suffix=".log"
        )
        # The child has to find the packages of this project, in whatever environment it runs.
        path = os.pathsep.join(filter(None, (os.fspath(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=dict(os.environ) | self._variables | {"PYTHONPATH": path},
                # Its own group: an interrupt is for the parent, which then ends the group as a whole.
                start_new_session=True,
            )
            self.info = self._answer()["ready"] | {"engine": self.name}
        except OSError as error:
            self._end()
            raise InputError(f"engine {self.name}: {self.command[0]}: {error.strerror}") from None
        except (KeyError, TypeError):
            self._end(keep=True)
            raise IncompleteRunError(self._failure("its first answer is not that it is ready")) from None
        except BaseException as error:
            self._end(keep=isinstance(error, IncompleteRunError))
            raise
        finally:
            os.close(errors)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(gently=error is None, keep=isinstance(error, IncompleteRunError))

    def run(self, job: Job) -> JobResult:
        """Let the engine serve a job; one at a time."""
        assert self._child is not None and self._child.stdin is not None, "used outside its context"
        # A child that has ended cannot be written to; reading says why it did.
        with suppress(BrokenPipeError):
            print(job.to_json(), file=self._child.stdin, flush=True)
        answer = self._answer()
        try:
            return JobResult.from_json(json.dumps(answer))
        except (KeyError, TypeError) as error:
            raise IncompleteRunError(self._failure(f"its answer is no result of a job ({error})")) from None

    def _answer(self) -> dict[str, Any]:
        """The next line that the child says."""
        assert self._child is not None
        line = self._line(_output(self._child).fileno())
        if not line:
            raise IncompleteRunError(self._failure(_how_ended(self._child.wait())))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise IncompleteRunError(
                self._failure(f"it answered {line.strip()[:80]!r}, which is no JSON object")
            )
        if "error" in answer:
            if answer.get("exit_code") == InputError.exit_code:
                raise InputError(str(answer["error"]))
            raise IncompleteRunError(self._failure(str(answer["error"])))
        return answer

    def _line(self, output: int) -> str:
        """What the child wrote up to the end of a line, or of all; empty once there is no more."""
        # A file object would take several lines at once, and nothing be left to wait for.
        while b"\n" not in self._unread:
            # A signal that comes just before a read, or to another thread, wakes nobody from it.
            while not select.select([output], [], [], _WAKE_SECONDS)[0]:
                pass
            more = os.read(output, _READ_BYTES)
            if not more:
                break
            self._unread += more
        line, end, self._unread = self._unread.partition(b"\n")
        return (line + end).decode(errors="replace")

    def _failure(self, what: str) -> str:
        return f"engine {self.name}: {what}; its log is {self._errors}"

    def _end(self, gently: bool = False, keep: bool = False) -> None:
        """End the child and all that it started; keep its log where an error names it."""
        child = self._child
        if child is not None:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS if gently else 0)
            # The group outlives its leader if an engine left processes behind.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            _output(child).close()
            self._child, self._unread = None, b""
        if not keep:
            Path(self._errors).unlink(missing_ok=True)


def _output(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdout is not None
    return child.stdout


def _how_ended(code: int) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process ended with exit code {code} and no answer"
