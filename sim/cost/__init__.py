"""Cost models: how long a step takes, from the integer sums of its batch. See docs/cost-models.md."""

from sim.cost.base import CostModel, StepShape, StepSums
from sim.cost.linear import YARDSTICK, YARDSTICK_ENGINE_OPTIONS, LinearCostModel
from sim.cost.registry import COST_MODELS, from_dict, load_cost_model
from sim.cost.roofline import RooflineCostModel

__all__ = [
    "COST_MODELS",
    "YARDSTICK",
    "YARDSTICK_ENGINE_OPTIONS",
    "CostModel",
    "LinearCostModel",
    "RooflineCostModel",
    "StepShape",
    "StepSums",
    "from_dict",
    "load_cost_model",
]
