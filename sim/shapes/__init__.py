"""Model shapes: by name, or from a Hugging Face config.json."""

from sim.shapes.base import DTYPE_BYTES, ModelShape, dtype_bytes
from sim.shapes.config import shape_from_config
from sim.shapes.known import SHAPES, shape_by_name

__all__ = ["DTYPE_BYTES", "SHAPES", "ModelShape", "dtype_bytes", "shape_by_name", "shape_from_config"]
