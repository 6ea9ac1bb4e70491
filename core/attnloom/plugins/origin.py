"""Where a plugin's module would be imported from: never from a directory that the user merely stands in."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from importlib_metadata import Distribution

from attnloom.plugins.record import PluginRecord


def stray_origin(record: PluginRecord) -> Path | None:
    """The current directory, where Python would take the plugin's module from it though the plugin is not installed
    there; else none. Executes nothing of the plugin."""
    package = record.module.partition(".")[0]
    if package in sys.modules:
        return None
    try:
        here = Path.cwd().resolve()
        spec = importlib.util.find_spec(package)
    except (OSError, ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    found_in = {Path(place).resolve().parent for place in places if place}
    if here not in found_in or here == Path(record.location).resolve():
        return None
    source = editable_source(record)
    return None if source is not None and here.is_relative_to(source.resolve()) else here


def editable_source(record: PluginRecord) -> Path | None:
    """The folder of a distribution that is installed in editable form; none where it is not."""
    try:
        return source_folder(Distribution.from_name(record.distribution))
    except Exception:
        return None


def source_folder(distribution: Distribution) -> Path | None:
    """The folder that an editable install points to, by its `direct_url.json`; none for other installs."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlparse(origin["url"]).path))
