"""Cost models by kind, from JSON objects and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sim.cost.base import CostModel
from sim.cost.linear import YARDSTICK, LinearCostModel
from sim.cost.roofline import RooflineCostModel
from tinyllm.errors import InputError

COST_MODELS: Final[dict[str, type[CostModel]]] = {
    "linear": LinearCostModel,
    "roofline": RooflineCostModel,
}
"""Classes by the `kind` of their JSON object. A new cost model is a file of its own and a line here."""

NAMED_COST_MODELS: Final[dict[str, CostModel]] = {"yardstick": YARDSTICK}


def from_dict(spec: Mapping[str, Any], source: str = "cost model") -> CostModel:
    """The model that a JSON object describes; `source` is the file or option that errors name.

    Raises:
        InputError: no or unknown `kind`, or what the kind refuses.
    """
    if not isinstance(spec, Mapping):
        raise InputError(f'{source}: not a JSON object; write {{"kind": …}}')
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in COST_MODELS:
        raise InputError(f"{source}: kind is {kind!r}; it must be one of {', '.join(COST_MODELS)}")
    return COST_MODELS[kind].from_dict({key: value for key, value in spec.items() if key != "kind"}, source)


def load_cost_model(name_or_path: str | Path) -> CostModel:
    """A cost model by name (`yardstick`), else from a JSON file.

    Raises:
        InputError: no such name or file, not JSON, or refused by `from_dict`.
    """
    name = str(name_or_path)
    if name in NAMED_COST_MODELS:
        return NAMED_COST_MODELS[name]
    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        names = ", ".join(NAMED_COST_MODELS)
        raise InputError(f"cost model {name!r}: no such file; give a JSON file or one of: {names}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cost model {name!r}: cannot be read as text ({error})") from None
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not valid JSON ({error}); mend the file") from None
    return from_dict(spec, name)
