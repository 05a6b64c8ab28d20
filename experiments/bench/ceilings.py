"""The machine's ceilings, measured between the engines' turns by a child process that then sleeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from experiments.bench.floor import Ceilings
from sim.shapes import ModelShape
from tinyllm.errors import IncompleteRunError

MeasureCeilings = Callable[[], "Measured"]


@dataclass(frozen=True)
class Measured:
    """One measurement.

    Attributes:
        gflops: of the fastest matrix product, and which it was.
        read_gb_s: of the fastest pass over memory.
        threads: that it used.
    """

    gflops: float
    product: str
    read_gb_s: float
    threads: int

    def ceilings(self) -> Ceilings:
        """The same in units of one."""
        return Ceilings(self.gflops * 1e9, self.read_gb_s * 1e9)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@contextmanager
def measuring_child(shape: ModelShape) -> Iterator[MeasureCeilings]:
    """A function that measures, in a process of its own: torch and its threads never run in this one.

    The process waits for the next call without a thread that spins.

    Raises:
        IncompleteRunError: when called, if the child has died.
    """
    command = [sys.executable, "-m", "experiments.bench.ceilings_child", json.dumps(product_shapes(shape))]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdin is not None and child.stdout is not None
    to_child, from_child = child.stdin, child.stdout

    def measure() -> Measured:
        try:
            print("measure", file=to_child, flush=True)
            return Measured(**json.loads(from_child.readline()))
        except (OSError, ValueError):
            raise IncompleteRunError(
                f"the process that measures the machine's ceilings ended with {child.wait()}: see above"
            ) from None

    try:
        yield measure
    finally:
        child.kill()
        child.wait()
        to_child.close()
        from_child.close()


def product_shapes(shape: ModelShape) -> list[tuple[int, int]]:
    """(inputs, outputs) of the model's matrix products, the head's among them."""
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    up = (2 if shape.gated_mlp else 1) * shape.intermediate_size
    return [
        (shape.hidden_size, q + 2 * kv),
        (q, shape.hidden_size),
        (shape.hidden_size, up),
        (shape.intermediate_size, shape.hidden_size),
        (shape.hidden_size, shape.vocab_size),
    ]
