"""The user's folders, as platformdirs finds them; where that is one look at the environment, without importing it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_XDG = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "data": ("XDG_DATA_HOME", ".local/share"),
}


def user_folder(kind: str) -> Path:
    """The user's `"config"`, `"cache"` or `"data"` folder for attnloom."""
    if sys.platform == "linux":
        variable, default = _XDG[kind]
        chosen = os.environ.get(variable, "")
        return Path(chosen if chosen.strip() else os.path.join(os.path.expanduser("~"), default), "attnloom")
    import platformdirs

    return getattr(platformdirs, f"user_{kind}_path")("attnloom", appauthor=False)
