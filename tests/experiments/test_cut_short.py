"""Runs that do not reach their end: killed, interrupted, out of disk. The log says so, and is readable."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record import manifest, workload, writer
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.errors import IncompleteRunError, InputError

Options = Callable[..., ReplayOptions]
NUM_REQUESTS = 20_000

IN_SMALL_PARTS = """
import sys
import experiments.run_directory as run_directory
from tinyllm.engine.record.writer import LogWriter

run_directory.RunDirectory.open_log = lambda run, flush_seconds=None: LogWriter(run.path, flush_rows=500)
import tinyllm.cli
sys.argv = ["tinyllm", *sys.argv[1:]]
tinyllm.cli.main()
"""
"""The command line with a log that is flushed often: a run of seconds then has parts to find."""


@pytest.fixture
def running(make_trace: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Start a long replay in a process of its own; return once the first parts of its log are there."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        trace = make_trace(NUM_REQUESTS)
        arguments = ["replay", str(trace), "--cost-model", "yardstick", "--out", str(tmp_path / "run")]
        command = [sys.executable, "-c", IN_SMALL_PARTS, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "steps" / "part-00002.parquet").exists():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.005)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def assert_ends_early_but_is_whole(run: Run) -> None:
    assert len(run.workload) == NUM_REQUESTS
    assert sorted(run.requests["request_id"]) == sorted(run.workload["request_id"])
    reasons = run.requests["finish_reason"].value_counts()
    assert reasons["unfinished"] > 0 and reasons["length"] > 0
    assert len(reasons) == 2
    assert run.steps["step"].tolist() == list(range(len(run.steps)))
    assert run.steps["end"].max() < run.workload["arrival"].max()
    finished = run.requests[run.requests["finish_reason"] == "length"]
    assert finished["output_tokens"].eq(finished["target_output_tokens"]).all()


def test_after_kill_9_the_log_says_running_and_every_row_of_the_workload_is_one_request(
    running: Callable[[], Any], tmp_path: Path
) -> None:
    process = running()
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    run = read_run(tmp_path / "run")
    assert run.status == "running"
    assert_ends_early_but_is_whole(run)


def test_ctrl_c_ends_a_run_between_two_steps_with_a_valid_log_that_says_interrupted(
    running: Callable[[], Any], tmp_path: Path
) -> None:
    process = running()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("\n") == 1 and "interrupted" in err
    run = read_run(tmp_path / "run")
    assert run.status == "interrupted"
    assert_ends_early_but_is_whole(run)
    assert run.manifest["num_steps"] == len(run.steps)
    # Nothing was lost between the engine and the log: all tokens that requests count were sampled in steps.
    assert run.steps["sampled_tokens"].sum() == run.requests["output_tokens"].sum()
    assert run.spans["sampled"].sum() == run.requests["output_tokens"].sum()


class FullDisk:
    """Stands in for a function that writes: after `allowed` calls there is no space left."""

    def __init__(self, write: Callable[..., Any], allowed: int) -> None:
        self.write = write
        self.left = allowed

    def __call__(self, *arguments: Any) -> Any:
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= 1
        return self.write(*arguments)


def test_a_disk_that_is_full_from_the_start_is_an_input_error_and_no_directory_stays(
    make_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_options()
    monkeypatch.setattr(manifest.os, "replace", FullDisk(os.replace, 0))
    with pytest.raises(InputError, match=r"--out .*run: No space left on device") as caught:
        replay(options)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("allowed", [0, 1, 5])
def test_a_disk_that_fills_up_in_mid_run_leaves_whole_parts_under_a_manifest_that_says_running(
    make_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    options = make_options(300)
    full = FullDisk(workload.write_table, allowed)
    monkeypatch.setattr(workload, "write_table", full)
    monkeypatch.setattr(writer, "write_table", full)
    monkeypatch.setattr(writer.LogWriter.__init__, "__defaults__", (200, None))
    with pytest.raises(IncompleteRunError, match="No space left on device") as caught:
        replay(options)
    assert caught.value.exit_code == 1
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) == 1 + allowed, "the manifest and what there was room for"
    if allowed == 0:
        with pytest.raises(InputError, match=r"workload\.parquet is missing"):
            read_run(tmp_path / "run")
        return
    run = read_run(tmp_path / "run")
    assert run.status == "running"
    assert sorted(run.requests["request_id"]) == sorted(run.workload["request_id"])


def test_a_manifest_that_cannot_be_finished_leaves_the_run_as_running(
    make_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_options()
    replace = os.replace

    def no_room_for_the_last_manifest(source: Path, target: Path) -> None:
        if Path(target).name == "manifest.json" and Path(target).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(manifest.os, "replace", no_room_for_the_last_manifest)
    with pytest.raises(IncompleteRunError):
        replay(options)
    assert read_run(tmp_path / "run").status == "running"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system can't be mounted here (needs root)")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_on_a_real_disk_that_fills_up_the_command_ends_with_one_line_and_exit_code_1(
    make_options: Options, tiny_disk: Path
) -> None:
    options = make_options(5_000, out="disk/run")
    with pytest.raises(IncompleteRunError, match="No space left on device"):
        replay(options)
    assert read_run(tiny_disk / "run").status == "running"


def test_on_a_real_disk_without_room_nothing_is_begun(make_options: Options, tiny_disk: Path) -> None:
    options = make_options(out="disk/run")
    with (tiny_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(InputError, match="No space left on device"):
        replay(options)
    assert not (tiny_disk / "run").exists()
