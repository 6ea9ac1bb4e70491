import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    from plan_batches import build_library

    return build_library(tmp_path_factory.mktemp("scheduler"))


@pytest.fixture(scope="session")
def planner(library):
    from attnloom_scheduler import Planner

    return Planner(library)
