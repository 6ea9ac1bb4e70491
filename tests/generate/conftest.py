import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="generate needs transformers (pip install 'attnloom[hf]')")
sys.path.insert(0, str(Path(__file__).parent))

from models import MODELS, llama


@pytest.fixture(scope="session")
def tiny_llama():
    return llama()


@pytest.fixture(scope="session", params=sorted(MODELS))
def tiny_model(request):
    return MODELS[request.param]()
