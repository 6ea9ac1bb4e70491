"""The version of the running code; the distribution takes its own from here, so a stale editable install cannot lie."""

__version__ = "0.1.0"
