"""An engine in a process of its own: `python -m experiments.bench.engines.worker NAME MODEL [--options JSON]`.

Standard output has a JSON object a line: `{"ready": {…}}` once the model is loaded, then a `JobResult` for each `Job`
on standard input, until that ends; `{"error": …, "exit_code": n}` for what went wrong, which is the last line then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from experiments.bench.engines import engine_class, rss
from experiments.bench.engines.base import Engine
from experiments.bench.engines.options import EngineOptions
from experiments.bench.jobs import Job, JobResult, Memory
from tinyllm.errors import IncompleteRunError, InputError, TinyLLMError

_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """An engine, loaded, and what its memory was before.

    Args:
        name: of the engine.
        model: a local Hugging Face directory.
        options: as JSON.
    """

    def __init__(self, name: str, model: Path, options: str) -> None:
        chosen = EngineOptions.from_json(options)
        kind = engine_class(name)
        if not (model / "config.json").is_file():
            raise InputError(f"{model}: has no config.json; give a local Hugging Face directory")
        _prepare(kind, name)
        self._rss_after_imports = rss.resident()
        start = time.perf_counter()
        self.engine = kind(model, chosen)
        self._facts = {"engine": name, "options": chosen.given(), "load_s": time.perf_counter() - start}

    def ready(self) -> dict[str, Any]:
        """What a report has to say of the engine."""
        return asdict(self.engine.info) | self._facts | {"python": platform.python_version()}

    def run(self, job: Job) -> JobResult:
        """Serve a job."""
        served = self.engine.run(job)
        weights, kv_pool = self.engine.memory
        return JobResult(served, Memory(self._rss_after_imports, weights, kv_pool, rss.peak()))


def _prepare(kind: type[Engine], name: str) -> None:
    try:
        kind.prepare()
    except ModuleNotFoundError as error:
        raise InputError(
            f"engine {name}: {error.name} is not installed; docs/benchmarks.md tells what it needs"
        ) from None


def _die_with_parent() -> None:
    """On Linux a parent that is killed takes this process along, also in mid-job."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(name: str, model: Path, options: str, say: Callable[[str], None]) -> int:
    """Answer jobs until standard input ends; return the exit code."""
    try:
        worker = Worker(name, model, options)
        say(json.dumps({"ready": worker.ready()}))
        for line in sys.stdin:
            say(worker.run(Job.from_json(line)).to_json())
        worker.engine.close()
    except TinyLLMError as error:
        say(json.dumps({"error": str(error), "exit_code": error.exit_code}))
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        say(
            json.dumps(
                {"error": f"{type(error).__name__}: {first}", "exit_code": IncompleteRunError.exit_code}
            )
        )
        return IncompleteRunError.exit_code
    return 0


def main() -> int:
    """Parse the command line and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.engines.worker", description=__doc__)
    parser.add_argument("name", help="of an engine, or module:Class")
    parser.add_argument("model", type=Path, help="a local Hugging Face directory")
    parser.add_argument("--options", default="{}", help="a JSON object of engine options")
    arguments = parser.parse_args()
    _die_with_parent()
    # Engines and their libraries print to standard output, which belongs to the answers here.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return serve(arguments.name, arguments.model, arguments.options, lambda line: print(line, file=answers))


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Not waiting for threads of the engine's own to end.
    os._exit(status)
