"""Formats of question files: one module per format, which declares it as `FORMAT`.

Adding a format, or a published question set in a new format, means adding a file here.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from stepladder.data.formats.base import QuestionFormat


@cache
def question_formats() -> tuple[QuestionFormat, ...]:
    """The formats of this package, in the order in which they are tried. The package is scanned on first use."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    formats: list[QuestionFormat] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return tuple(sorted(formats, key=lambda each: -each.priority))
