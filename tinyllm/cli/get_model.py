"""`tinyllm get-model`: bring a real checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def get_model(
    name: Annotated[str, typer.Argument(help="Model of the catalog: smollm2-135m.")],
    directory: Annotated[Path, typer.Argument(help="Place of the new model directory.")],
) -> None:
    """Download a checkpoint, check it, and lay it out as a Hugging Face directory.

    The download is kept in the user's cache; once it is there, this works offline.

    Example: tinyllm get-model smollm2-135m models/smollm2-135m
    """
    from tinyllm.models.download import install_model

    install_model(name, directory, report=typer.echo)
