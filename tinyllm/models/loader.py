"""From a checkpoint directory to a model that is ready to run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tinyllm.errors import InputError
from tinyllm.models.base import DecoderModel
from tinyllm.models.checkpoint import Checkpoint
from tinyllm.models.config import ModelConfig
from tinyllm.models.registry import model_class

logger = logging.getLogger(__name__)

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types of weights and activations; bfloat16 is experimental."""

_STORED_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_HEAD: Final = "lm_head.weight"
_NAMES_SHOWN: Final = 5


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    is_compact: bool = True,
) -> DecoderModel:
    """Load a local Hugging Face directory.

    Weights are copied tensor by tensor from the mapped files into parameters that were allocated once, so that
    the peak is the model and one tensor. Tensors that the model does not know are named in a warning.

    Args:
        path: directory with `config.json` and the weights.
        device: a torch device, e.g. `cpu` or `cuda`.
        dtype: a key of `DTYPES`.
        is_compact: on the CPU, keep weights in fewer bytes where that changes no bit (`DecoderModel.pack`).

    Returns:
        The model in evaluation mode; no parameter requires a gradient.

    Raises:
        InputError: whatever is wrong with the directory, the config, a tensor (missing, of another shape, not of
            a floating type), the device or the dtype, in one line.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not supported; use one of {', '.join(DTYPES)}")
    place = checked_device(device)
    directory = Path(path)
    config = ModelConfig.from_directory(directory)
    family = model_class(config.architecture)
    checkpoint = Checkpoint.open(directory)
    sources = _sources(checkpoint, family)
    config = _resolve_tying(config, family, checkpoint, sources)
    with torch.device(place):
        model = family(config, DTYPES[dtype])
    _fill(model, checkpoint, sources)
    model.pack(is_compact)
    return model.eval()


def checked_device(device: str | torch.device) -> torch.device:
    """The torch device of that name. Raises `InputError` where this machine has none such."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as fault:
        reason = str(fault).strip().splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason[:120]}); use cpu") from None
    return place


def _sources(checkpoint: Checkpoint, family: type[DecoderModel]) -> dict[str, str]:
    """Full name of each tensor → its name in the file, which may lack the prefix of the decoder."""
    sources: dict[str, str] = {}
    for name in checkpoint.shards:
        if family.ignores(name):
            continue
        prefixed = name.startswith(family.base_prefix) or name == _HEAD
        full_name = name if prefixed else family.base_prefix + name
        if full_name in sources:
            raise InputError(
                f"{checkpoint.directory}: {sources[full_name]} and {name} are one tensor; use files of one model"
            )
        sources[full_name] = name
    return sources


def _resolve_tying(
    config: ModelConfig, family: type[DecoderModel], checkpoint: Checkpoint, sources: dict[str, str]
) -> ModelConfig:
    """Settle a head that is tied by the config and stored all the same, as Transformers 5 does.

    The same values: one copy. Only the head is there: it is the embedding. Other values: the file wins.
    """
    if not config.tie_word_embeddings or _HEAD not in sources:
        return config
    head = sources.pop(_HEAD)
    embedding = sources.setdefault(family.embedding_name, head)
    if torch.equal(checkpoint.tensor(head), checkpoint.tensor(embedding)):
        return config
    logger.warning(
        "%s: tie_word_embeddings is set but %s differs from the embedding; not tied",
        checkpoint.directory,
        _HEAD,
    )
    sources[_HEAD] = head
    return replace(config, tie_word_embeddings=False)


def _fill(model: DecoderModel, checkpoint: Checkpoint, sources: dict[str, str]) -> None:
    views = model.checkpoint_views()
    if missing := [name for name in views if name not in sources]:
        raise InputError(
            f"{checkpoint.directory}: tensors are missing: {_listed(missing)}; copy the weights again"
        )
    if stray := [source for name, source in sources.items() if name not in views]:
        logger.warning(
            "%s: ignored tensors that the model does not know: %s", checkpoint.directory, _listed(stray)
        )
    for name, view in views.items():
        _copy(checkpoint, sources[name], view)


def _copy(checkpoint: Checkpoint, source: str, view: Tensor) -> None:
    tensor = checkpoint.tensor(source)
    where = f"{checkpoint.shards[source].path}: tensor {source}"
    if tensor.shape != view.shape:
        raise InputError(
            f"{where} has shape {list(tensor.shape)}, config.json says {list(view.shape)}; use files of one model"
        )
    if tensor.dtype not in _STORED_DTYPES:
        raise InputError(
            f"{where} has dtype {tensor.dtype}; quantized weights are not supported, use float weights"
        )
    view.copy_(tensor)


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
