"""Lengths in, plan out. Knows no tensor library.

The scheduler cuts a batch to work items and deals them to workers. `Planner` is the C++ one, `twin` says the same in
Python, readably; `costs` holds the predicted costs of items.
"""

from __future__ import annotations

from pathlib import Path

from attnloom_scheduler.inputs import PlanInput, PlanSummary, TileClass, address_of
from attnloom_scheduler.planner import Planner, PlanView

__all__ = ["PlanInput", "PlanSummary", "PlanView", "Planner", "TileClass", "address_of", "include_dir", "sources"]


def include_dir() -> Path:
    """The folder to put on the include path for `<attnloom/plan.h>` and `<attnloom/scheduler.h>`."""
    return Path(__file__).parent / "include"


def sources() -> list[Path]:
    """The C++ files of the scheduler, in a fixed order. They also need the include folder of the core (`args.h`)."""
    return sorted((Path(__file__).parent / "src").glob("*.cpp"))
