import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """Compiled harnesses are shared by the session and leave the user's cache alone."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ATTNLOOM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("ATTNLOOM_CONFIG", "")
    yield
    patch.undo()
