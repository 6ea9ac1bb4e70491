import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session", autouse=True)
def _two_threads():
    import torch

    torch.set_num_threads(2)
