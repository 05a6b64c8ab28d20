"""A LLaMA model in a GGUF file → config.json, generation_config.json and float32 safetensors.

Source: the GGUF specification and llama.cpp's `convert_hf_to_gguf.py`, whose renaming and permutation are undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tinyllm.errors import InputError

_TOP_LEVEL: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUFFile:
    """A GGUF file, memory-mapped: its metadata and its tensors, dequantized on demand.

    Attributes:
        metadata: key → value, as written.
    """

    def __init__(self, path: Any) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self.metadata: Mapping[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor in float32, in the row-major shape of PyTorch."""
        from gguf import dequantize

        stored = self._tensors[name]
        values = np.asarray(dequantize(stored.data, stored.tensor_type), dtype=np.float32)
        return values.reshape([int(size) for size in reversed(stored.shape)])


def model_config(file: GGUFFile) -> dict[str, Any]:
    """`config.json` of a LLaMA GGUF. Raises `InputError` for another architecture or scaled rotary embedding."""
    meta = file.metadata
    if meta["general.architecture"] != "llama":
        raise InputError(
            f"GGUF architecture {meta['general.architecture']!r} cannot be converted; only 'llama' can"
        )
    if "rope_freqs.weight" in file.names() or "llama.rope.scaling.type" in meta:
        raise InputError("GGUF with scaled rotary embedding cannot be converted; use the original checkpoint")
    hidden_size, num_heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden_size,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", num_heads),
        "head_dim": meta.get("llama.rope.dimension_count", hidden_size // num_heads),
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": _shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(meta.get("llama.rope.freq_base", 10_000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.names(),
        "torch_dtype": "float32",
        **special_ids(meta),
    }


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Token ids for `config.json` and `generation_config.json`."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in names.items()}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def state_dict(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """All weights in float32 under the names of Transformers."""
    state = {}
    for name in file.names():
        tensor = file.tensor(name)
        if (match := _LAYER_NAME.fullmatch(name)) and match[2] in _IN_LAYER:
            if match[2] in ("attn_q", "attn_k"):
                heads = config["num_attention_heads" if match[2] == "attn_q" else "num_key_value_heads"]
                tensor = interleaved_to_halves(tensor, heads)
            state[f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"] = tensor
        elif name in _TOP_LEVEL:
            state[_TOP_LEVEL[name]] = tensor
        else:
            raise InputError(f"GGUF tensor {name!r} has no place in LLaMA; use the original checkpoint")
    return state


def interleaved_to_halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of q and k rows `[num_heads * head_dim, in]`.

    It rotates channel pairs (2i, 2i + 1) where Transformers rotates (i, i + head_dim / 2).
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _shortest(value: float) -> float:
    """The shortest decimal of a number that was stored in float32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
