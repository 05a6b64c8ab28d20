"""`replay --mode sim`: the scheduler on a simulated clock under a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.options import ReplayOptions
from sim.cost import YARDSTICK_ENGINE_OPTIONS, CostModel, RooflineCostModel, load_cost_model
from sim.driver import Progress, Simulation
from sim.hardware import gpu_by_name
from sim.memory import num_gpu_blocks
from sim.prefix import prompt_hasher
from sim.shapes import shape_by_name
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.record.writer import LogWriter
from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.scheduler import Scheduler


@dataclass(frozen=True)
class Device:
    """A simulated device: how long steps take, and what follows from it for the engine's options."""

    cost: CostModel
    defaults: dict[str, Any]


def make_device(options: ReplayOptions) -> Device:
    """The device of `--cost-model`, or of `--gpu` and `--model-shape`.

    Raises:
        InputError: none or both are given, or a name or file is wrong.
    """
    if options.cost_model is not None:
        if options.gpu is not None:
            raise InputError("--cost-model and --gpu both say how long a step takes; give one of them")
        defaults = dict(YARDSTICK_ENGINE_OPTIONS) if options.cost_model == "yardstick" else {}
        if options.model_shape is not None:
            defaults["max_model_len"] = shape_by_name(options.model_shape).max_position_embeddings
        return Device(load_cost_model(options.cost_model), defaults)
    if options.gpu is None or options.model_shape is None:
        raise InputError(
            "--mode sim needs a device: give --gpu and --model-shape (e.g. h100 and llama-3.1-8b), "
            "or --cost-model yardstick or a JSON file"
        )
    gpu, shape = gpu_by_name(options.gpu), shape_by_name(options.model_shape)
    cost = RooflineCostModel(gpu, shape, dtype=options.dtype, tp=options.tp)
    defaults = {"max_model_len": shape.max_position_embeddings}
    if options.num_gpu_blocks is None:
        defaults["num_gpu_blocks"] = num_gpu_blocks(
            gpu,
            shape,
            dtype=options.dtype,
            tp=options.tp,
            gpu_memory_utilization=options.gpu_memory_utilization,
            block_size=options.block_size or SchedulerConfig.block_size,
        )
    return Device(cost, defaults)


def scheduler_config(
    options: ReplayOptions, defaults: dict[str, Any], has_prefix_ids: bool
) -> SchedulerConfig:
    """The scheduler's configuration: what was given, else what follows from the device, else the defaults.

    The prefix cache is on by default where the trace says what prompts share.
    """
    chosen = {"enable_prefix_caching": has_prefix_ids, **defaults, **options.engine_options()}
    if "num_gpu_blocks" not in chosen:
        raise InputError(
            "--num-gpu-blocks: give the size of the KV pool, which this cost model does not tell"
        )
    return SchedulerConfig(**chosen)


class SimulatedReplay:
    """One simulated run, from a workload to its log."""

    def __init__(
        self,
        records: list[ArrivalRecord],
        config: SchedulerConfig,
        policy: SchedulingPolicy,
        cost: CostModel,
        writer: LogWriter,
        prefix_block_size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        caching = config.enable_prefix_caching
        self.scheduler = Scheduler(config, policy)
        self.recorder = LogRecorder(writer, self.scheduler)
        outputs = TargetLengthProcessor(config.max_model_len, config.block_size if caching else None)
        self.core = EngineCore(self.scheduler, outputs, self.recorder)
        hasher = prompt_hasher(config.block_size, prefix_block_size) if caching else None
        self._simulation = Simulation(records, self.core, cost, hasher, progress)

    @property
    def now(self) -> int:
        """Simulated time, integer ns."""
        return self._simulation.now

    def run(self) -> None:
        """Run to the end; `close` writes what is then still unfinished."""
        self._simulation.run()

    def close(self) -> None:
        """Complete the log at the time reached, also of a run that was cut short."""
        self.recorder.close(self.now)
