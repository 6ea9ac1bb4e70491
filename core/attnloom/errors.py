"""The exceptions attnloom raises. Every one derives from `AttnloomError` and from the built-in it resembles."""

from __future__ import annotations


class AttnloomError(Exception):
    """Base of all attnloom errors."""


class ConfigError(AttnloomError, ValueError):
    """A configuration file or environment variable is wrong."""


class PluginError(AttnloomError, RuntimeError):
    """A plugin is broken, incompatible, missing or clashes with another."""


class UnknownNameError(AttnloomError, LookupError):
    """No plugin provides the variant, storage format, tile heuristic or stack that was asked for."""


class UnavailableError(PluginError, UnknownNameError):
    """A plugin would provide the name, but is disabled, incompatible or broken; the cause is chained."""


class CompositionError(AttnloomError, ValueError):
    """Variants that cannot be combined, or a descriptor that is incomplete."""


class ParamError(AttnloomError, ValueError):
    """A variant parameter is unknown, missing, or of the wrong type, shape or dtype."""


class UnsupportedError(AttnloomError, ValueError):
    """A dtype, head dim, device, tile or option that no installed kernel family supports."""


class ModError(UnsupportedError):
    """A Python score or mask function does something that cannot become a functor; the message names its line."""


class IndexFormatError(AttnloomError, ValueError):
    """A `ComposedIndex` (or the page table, tree, ... it is built from) is malformed."""


class CacheFullError(AttnloomError, MemoryError):
    """A page pool or radix tree has no page left that it may hand out. Nothing was changed."""


class PageError(AttnloomError, ValueError):
    """Pages or sequences that are not a page pool's own to change that way. Nothing was changed."""


class PlanError(AttnloomError, ValueError):
    """A batch cannot be planned. The plan in force before the call stays in force."""


class RunError(AttnloomError, ValueError):
    """Tensors given to `run` do not match the plan. Nothing was launched or written."""


class NotPlannedError(AttnloomError, RuntimeError):
    """`run` was called before `plan`."""


class CompileError(AttnloomError, RuntimeError):
    """A kernel could not be compiled, or no usable compiler was found."""
