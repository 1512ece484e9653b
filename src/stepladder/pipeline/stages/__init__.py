"""The stages that a recipe can contain, one module each: a module `prm_eval` declares the stage `prm-eval` as `STAGE`.

Modules are found by name and imported on first use. Adding a stage means adding a file here.
"""

from pkgutil import iter_modules

from stepladder.core.registry import Registry
from stepladder.pipeline.stage import StageResult, StageSpec, Task

__all__ = ["STAGES", "StageResult", "StageSpec", "Task", "get_stage", "scan_stages"]

STAGES: Registry[StageSpec] = Registry("kind of stage")


def scan_stages() -> None:
    """Register every module of this package, also of folders that were added to its `__path__`."""
    for module in sorted(iter_modules(__path__), key=lambda module: module.name):
        name = module.name.replace("_", "-")
        if name not in STAGES:
            STAGES.register(name, f"{__name__}.{module.name}:STAGE", "")


def get_stage(name: str) -> StageSpec:
    """The stage of that name."""
    return STAGES.get(name)


scan_stages()
