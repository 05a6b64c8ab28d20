"""vLLM on a CPU, in the Python of an environment of its own: eager, and compiled by Inductor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from experiments.bench.engines.base import EngineInfo, eos_token_ids
from experiments.bench.engines.options import EngineOptions
from experiments.bench.engines.stepping import StepEngine, StepOutput, step_output
from experiments.bench.jobs import BenchRequest
from tinyllm.bridge.environment import vllm_python
from tinyllm.errors import InputError

BLOCK_SIZE: Final = 128
"""What vLLM takes by itself on a CPU."""
NUM_SEQS: Final = 64
"""For how many sequences a pool of a given size is rounded up to whole blocks, unless `max_num_seqs` says."""


class VLLM(StepEngine):
    """`LLMEngine` with its scheduler and model in this process.

    Its own default, an engine process and a worker process, keeps one core free of computing for the former: on a
    machine of two cores the model would get a single thread.
    """

    modules = ("torch", "vllm", "vllm.v1.engine.llm_engine")
    enforce_eager: ClassVar[bool]

    @classmethod
    def python(cls, options: EngineOptions) -> Path:
        return vllm_python("--backend vllm", Path(options.vllm_python) if options.vllm_python else None)

    @classmethod
    def environment(cls, options: EngineOptions) -> Mapping[str, str]:
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": str(options.kvcache_space),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        # vLLM's advice for speed; its own worker processes get no other OpenMP than torch's without it.
        openmp = cls.python(options).parents[1] / "lib/libiomp5.so"
        return variables | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})

    def __init__(self, model: Path, options: EngineOptions) -> None:
        import torch
        import vllm
        from vllm import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = EngineArgs(
            model=str(model),
            dtype=options.dtype,
            seed=0,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            num_gpu_blocks_override=_num_blocks(options),
            enforce_eager=self.enforce_eager,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        try:
            self._engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
        except ValueError as error:
            raise InputError(
                f"vLLM refuses the options or {model}: {str(error).partition(chr(10))[0]}"
            ) from None
        self._eos = eos_token_ids(model)
        core = self._engine.engine_core.engine_core
        self._scheduler: Any = core.scheduler
        self._runner: Any = core.model_executor.driver_worker.worker.model_runner
        self._names: dict[str, str] = {}
        self._info = _info(vllm, torch, self._engine.vllm_config, options)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def memory(self) -> tuple[int | None, int | None]:
        # It packs weights where parameters no longer show them.
        return None, _bytes(self._runner.kv_caches)

    def add(self, request: BenchRequest, ignore_eos: bool) -> str | None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=[] if ignore_eos else self._eos,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": request.prompt_token_ids}
        try:
            internal = self._engine.add_request(request.request_id, prompt, params)
        except ValueError as error:
            return str(error)
        self._names[internal] = request.request_id
        return None

    def step(self) -> list[StepOutput]:
        outputs = []
        for output in self._engine.step():
            new = output.outputs[0]
            outputs.append(step_output(output.request_id, list(new.token_ids), new.finish_reason))
        return outputs

    def running(self) -> Iterable[str]:
        return [self._names[request.request_id] for request in self._scheduler.running]


class VLLMEager(VLLM):
    """Layer by layer, as torch runs it."""

    enforce_eager = True


class VLLMCompiled(VLLM):
    """Compiled by Inductor before the first step, which takes a minute or more."""

    enforce_eager = False


def _num_blocks(options: EngineOptions) -> int | None:
    num_blocks = options.num_pages(BLOCK_SIZE, options.max_num_seqs or NUM_SEQS)
    if num_blocks is None or options.max_model_len is None:
        return num_blocks
    # vLLM wants room for one request of the whole context.
    return max(num_blocks, -(-options.max_model_len // BLOCK_SIZE))


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the storages, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _info(vllm: Any, torch: Any, config: Any, options: EngineOptions) -> EngineInfo:
    return EngineInfo(
        version=vllm.__version__,
        dtype=options.dtype,
        threads=torch.get_num_threads(),
        max_model_len=config.model_config.max_model_len,
        settings={
            "torch": torch.__version__,
            "compilation": config.compilation_config.mode.name,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "num_gpu_blocks": config.cache_config.num_gpu_blocks,
            "block_size": config.cache_config.block_size,
        },
    )
