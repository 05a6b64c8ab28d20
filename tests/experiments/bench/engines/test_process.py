"""The two ends of an engine's process, with an engine of this file in place of a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.bench.engines import ENGINES, process
from experiments.bench.engines.process import EngineProcess
from experiments.bench.jobs import BenchRequest, Job
from tinyllm.bridge.environment import ROOT
from tinyllm.errors import IncompleteRunError, InputError, TinyLLMError

FAKE = """
import os, signal, subprocess, sys, time
from experiments.bench.engines.base import Engine, EngineInfo
from experiments.bench.jobs import Served
from tinyllm.errors import InputError

class Fake(Engine):
    def __init__(self, model, options):
        print("a library that prints")
        self.words = (model / "what.txt").read_text().split()
        if "refuses" in self.words: raise InputError("engine option dtype int3: no")
        if "breaks" in self.words: raise RuntimeError("no memory\\nat all")
        if "exits" in self.words: os._exit(5)
        self.threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    @property
    def info(self): return EngineInfo("1.0", "float32", self.threads, 100, {"offline": os.environ["HF_HUB_OFFLINE"]})
    memory = property(lambda self: (10, None))
    def serve(self, requests, ignore_eos):
        command = requests[0].request_id
        if command == "die": print("dying", file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)
        if command == "raise": raise RuntimeError("lost")
        if command in ("sleep", "spawn"):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (self.words and open(self.words[-1], "w")).write(f"{os.getpid()} {child.pid}")
        if command == "sleep": time.sleep(600)
        return [Served(r.request_id, 0.0, 0.1, [0.2], [len(r.prompt_token_ids)], "length") for r in requests]

class Lacking(Fake):
    modules = ("json", "no_such_package.part")
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineProcess]:
    """`start("breaks", threads=3)`: the process of the engine above, registered as `fake`, not yet entered."""
    (tmp_path / "fake_engine.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_engine", raising=False)
    monkeypatch.setitem(ENGINES, "fake", "fake_engine:Fake")  # type: ignore[misc]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")

    def make(words: str = "", **options: Any) -> EngineProcess:
        (tmp_path / "what.txt").write_text(f"{words} {tmp_path / 'pids'}")
        return EngineProcess("fake", tmp_path, options)

    return make


def job(*names: str) -> Job:
    return Job([BenchRequest(name, [1, 2], 1) for name in names])


def has_ended(pid: int) -> bool:
    """Within a moment, or a zombie that waits for whoever inherited it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("tinyllm-bench-fake-*.log"))


def test_jobs_are_answered_in_turn_and_nothing_is_left(
    start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    with start(threads=3, num_gpu_blocks=7) as engine:
        assert engine.info["version"] == "1.0" and engine.info["engine"] == "fake"
        assert (engine.info["threads"], engine.info["settings"]) == (3, {"offline": "1"})
        assert engine.info["options"] == {
            "dtype": "float32",
            "threads": 3,
            "num_gpu_blocks": 7,
            "block_size": 16,
            "kvcache_space": 4,
        }
        first, second = engine.run(job("a", "b")), engine.run(job("c"))
        assert [one.request_id for one in first.served + second.served] == ["a", "b", "c"]
        assert (first.served[0].token_ids, first.served[0].finish_reason) == ([2], "length")
        memory = first.memory
        assert (memory.weights, memory.kv_pool) == (10, None)
        assert 0 < memory.rss_after_imports <= memory.peak_rss
    assert logs(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        ("refuses", InputError, "^engine option dtype int3: no$"),
        ("breaks", IncompleteRunError, r"^engine fake: RuntimeError: no memory; its log is .*\.log$"),
        (
            "exits",
            IncompleteRunError,
            "^engine fake: its process ended with exit code 5 and no answer; its log",
        ),
    ],
)
def test_an_engine_that_does_not_load_says_why_in_a_line(
    words: str, kind: type[TinyLLMError], says: str, start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=says), start(words):
        pass
    assert len(logs(tmp_path)) == (kind is IncompleteRunError)


@pytest.mark.parametrize(
    ("request_id", "says", "logged"),
    [
        ("die", "its process was killed by signal 9", "dying"),
        ("raise", "RuntimeError: lost", "Traceback"),
    ],
)
def test_an_engine_that_fails_in_a_job_ends_with_an_error_and_its_log_is_kept(
    request_id: str, says: str, logged: str, start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    with pytest.raises(IncompleteRunError) as error, start() as engine:
        engine.run(job(request_id))
    (log,) = logs(tmp_path)
    assert str(error.value).startswith(f"engine fake: {says}")
    assert str(error.value).endswith(f"; its log is {log}")
    assert logged in log.read_text()


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (["hello there"], "it answered 'hello there', which is no JSON object"),
        (["7"], "it answered '7', which is no JSON object"),
        (['{"served": []}'], "its first answer is not that it is ready"),
        (['{"ready": 1}'], "its first answer is not that it is ready"),
        (['{"ready": {}}', '{"served": 1}'], "its answer is no result of a job"),
        (
            ['{"ready": {}}', '{"served": [{"id": 1}], "memory": {}, "details": {}}'],
            "its answer is no result",
        ),
    ],
)
def test_rubbish_in_place_of_an_answer_ends_the_engine(
    answers: list[str], says: str, start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    child = tmp_path / "python"
    # At once: the second line has to be found though nothing new comes.
    lines = "".join(f"{answer}\n" for answer in answers)
    child.write_text(
        f"#!{sys.executable}\nprint({lines!r}, end='', flush=True)\nimport time\ntime.sleep(600)\n"
    )
    child.chmod(0o755)
    engine = start()
    engine.command[0] = str(child)
    with pytest.raises(IncompleteRunError, match=f"^engine fake: {says}"), engine:
        engine.run(job("a"))


def test_a_python_that_does_not_run_is_named(start: Callable[..., EngineProcess], tmp_path: Path) -> None:
    engine = start()
    engine.command[0] = str(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"^engine fake: .*config\.json: Permission denied$"), engine:
        pass
    assert logs(tmp_path) == []


@pytest.mark.parametrize("wakes", [True, False])
def test_an_interrupt_ends_the_engine_and_what_it_started(
    start: Callable[..., EngineProcess], tmp_path: Path, wakes: bool
) -> None:
    pids = tmp_path / "pids"

    def interrupt() -> None:
        while not (pids.exists() and pids.read_text()):
            time.sleep(0.02)
        if wakes:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            # As one that comes between the last look for signals and the read: it interrupts no system call there.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), start() as engine:
        engine.run(job("sleep"))
    assert time.monotonic() - begin < process.GRACE_SECONDS + 20
    assert all(has_ended(int(pid)) for pid in pids.read_text().split())
    assert logs(tmp_path) == []


def test_what_an_engine_leaves_behind_is_ended_with_it(
    start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    with start() as engine:
        engine.run(job("spawn"))
    assert all(has_ended(int(pid)) for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
def test_a_parent_that_is_killed_takes_the_engine_along(
    start: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    command = start().command
    script = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen({command!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        f"print({job('sleep').to_json()!r}, file=child.stdin, flush=True)\n"
        "child.wait()\n"
    )
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    while not ((tmp_path / "pids").exists() and (tmp_path / "pids").read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    worker, spawned = map(int, (tmp_path / "pids").read_text().split())
    parent.kill()
    parent.wait()
    assert has_ended(worker)
    # Its own children it can tell nothing any more; this one is ended here.
    os.kill(spawned, signal.SIGKILL)


def test_a_worker_runs_by_hand(start: Callable[..., EngineProcess], tmp_path: Path) -> None:
    command = start().command
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        command, input=job("a").to_json(), capture_output=True, text=True, env=environment, check=True
    )
    ready, result = map(json.loads, done.stdout.splitlines())
    assert ready["ready"]["version"] == "1.0"
    assert result["served"][0]["request_id"] == "a"


@pytest.mark.parametrize(
    ("name", "model", "options", "says"),
    [
        ("nano", ".", {}, "engine nano: unknown; choose tinyllm, transformers-static"),
        ("json:nothing", ".", {}, "engine json:nothing: .*give module:Class"),
        ("json:JSONDecoder", ".", {}, "engine json:JSONDecoder: is no class derived from"),
        ("tinyllm", ".", {"blocks": 3}, "engine option blocks: unknown; choose from dtype, threads"),
        ("tinyllm", ".", {"threads": 0}, "engine option threads 0: give a whole number of at least 1"),
        ("tinyllm", ".", {"dtype": 4}, "engine option dtype 4: give a name"),
        ("tinyllm", ".", {"block_size": None}, "engine option block_size None: give a whole number"),
        ("vllm-eager", ".", {"vllm_python": "nowhere"}, "--backend vllm: no nowhere; run `make peer-vllm`"),
    ],
)
def test_what_is_wrong_is_said_before_a_process_is_started(
    name: str, model: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        EngineProcess(name, model, options)


def test_a_package_that_an_engine_lacks_is_named(start: Callable[..., EngineProcess], tmp_path: Path) -> None:
    start()
    with (
        pytest.raises(InputError, match="engine fake_engine:Lacking: no_such_package is not installed"),
        EngineProcess("fake_engine:Lacking", tmp_path),
    ):
        pass


def test_a_directory_that_is_no_model_is_refused(start: Callable[..., EngineProcess], tmp_path: Path) -> None:
    engine = start()
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json; give a local Hugging Face directory"), engine:
        pass
