"""`replay --mode sim`: the scheduler on a simulated clock under a cost model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.options import ReplayOptions
from experiments.workload import Workload
from sim.cost import YARDSTICK_ENGINE_OPTIONS, CostModel, RooflineCostModel, load_cost_model
from sim.driver import OnEnd, Progress, PromptHashes, Simulation
from sim.hardware import gpu_by_name
from sim.memory import num_cpu_blocks, num_gpu_blocks
from sim.prefix import SessionHasher, prompt_hasher
from sim.shapes import shape_by_name
from tinyllm.engine.core import EngineCore
from tinyllm.engine.output import TargetLengthProcessor
from tinyllm.engine.record.recorder import LogRecorder
from tinyllm.engine.record.writer import LogWriter
from tinyllm.errors import InputError
from tinyllm.policy.base import SchedulingPolicy
from tinyllm.policy.config import SchedulerConfig
from tinyllm.policy.scheduler import Scheduler


class SimulatedMode:
    """A simulated device: how long steps take, and what follows from it for the engine's options.

    Raises:
        InputError: neither `--cost-model` nor `--gpu` with `--model-shape` is given, or both, or a name or
            file is wrong.
    """

    flush_seconds: float | None = None
    can_lag = False

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._defaults: dict[str, Any] = {}
        if options.cost_model is not None and options.gpu is not None:
            raise InputError("--cost-model and --gpu both say how long a step takes; give one of them")
        if options.cost_model is not None:
            self._cost = load_cost_model(options.cost_model)
            if options.cost_model == "yardstick":
                self._defaults |= YARDSTICK_ENGINE_OPTIONS
            if options.model_shape is not None:
                self._defaults["max_model_len"] = shape_by_name(options.model_shape).max_position_embeddings
        elif options.gpu is not None and options.model_shape is not None:
            self._cost = self._roofline(options.gpu, options.model_shape)
        else:
            raise InputError(
                "--mode sim needs a device: give --gpu and --model-shape (e.g. h100 and llama-3.1-8b), "
                "or --cost-model yardstick or a JSON file"
            )

    def _roofline(self, gpu_name: str, shape_name: str) -> CostModel:
        options = self._options
        gpu, shape = gpu_by_name(gpu_name), shape_by_name(shape_name)
        dtype = options.dtype or "bfloat16"
        block_size = SchedulerConfig.block_size if options.block_size is None else options.block_size
        self._defaults["max_model_len"] = shape.max_position_embeddings
        if options.num_gpu_blocks is None:
            utilization = options.gpu_memory_utilization
            self._defaults["num_gpu_blocks"] = num_gpu_blocks(
                gpu,
                shape,
                dtype=dtype,
                tp=options.tp,
                gpu_memory_utilization=0.9 if utilization is None else utilization,
                block_size=block_size,
            )
        if options.preemption == "swap" and options.num_cpu_blocks is None:
            self._defaults["num_cpu_blocks"] = num_cpu_blocks(
                shape, options.swap_space, dtype=dtype, tp=options.tp, block_size=block_size
            )
        return RooflineCostModel(gpu, shape, dtype=dtype, tp=options.tp, block_size=block_size)

    def config(self, shares_prefixes: bool) -> SchedulerConfig:
        """What was given, else what follows from the device, else the defaults."""
        chosen = {
            "enable_prefix_caching": shares_prefixes,
            **self._defaults,
            **self._options.engine_options(),
        }
        if "num_gpu_blocks" not in chosen:
            raise InputError(
                "--num-gpu-blocks: give the size of the KV pool, which this cost model does not tell"
            )
        return SchedulerConfig(**chosen)

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the device."""
        return {"device": "simulated", "cost_model": self._cost.describe()}

    def make_run(
        self, workload: Workload, config: SchedulerConfig, policy: SchedulingPolicy
    ) -> SimulatedReplay:
        """A run that is ready to start."""
        return SimulatedReplay(workload, config, policy, self._cost)


class SimulatedReplay:
    """One simulated run, from a workload to its log."""

    def __init__(
        self, workload: Workload, config: SchedulerConfig, policy: SchedulingPolicy, cost: CostModel
    ) -> None:
        self.clients = workload.clients()
        self._cost = cost
        caching = config.enable_prefix_caching
        self._prompt_hashes: PromptHashes | None = None
        self._on_end: OnEnd | None = None
        if caching:
            self._prompt_hashes, self._on_end = _hashing(workload, config)
        self.scheduler = Scheduler(config, policy)
        outputs = TargetLengthProcessor(config.max_model_len, config.block_size if caching else None)
        self.core = EngineCore(self.scheduler, workload.predicting(outputs))
        self._simulation: Simulation | None = None

    @property
    def now(self) -> int:
        """Simulated time, integer ns."""
        return self._simulation.now if self._simulation else 0

    def run(self, writer: LogWriter, progress: Progress) -> None:
        """Run to the end; `close` writes what is then still unfinished."""
        self.core.recorder = LogRecorder(writer, self.scheduler)
        self._simulation = Simulation(
            self.clients, self.core, self._cost, self._prompt_hashes, progress, self._on_end
        )
        self._simulation.run()

    def close(self, directory: Path) -> None:
        """Complete the log at the time reached, also of a run that was cut short."""
        self.core.recorder.close(self.now)


def _hashing(workload: Workload, config: SchedulerConfig) -> tuple[PromptHashes, OnEnd | None]:
    """What gives prompts their hashes, and what it has to be told of ends."""
    if not workload.contains_history:
        return prompt_hasher(config.block_size, workload.prefix_block_size), None
    hasher = SessionHasher(workload.records, workload.turns, config.block_size, workload.prefix_block_size)
    return lambda record: hasher.start(record, record.arrival_ns), hasher.end
