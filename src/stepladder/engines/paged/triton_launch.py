"""Launches Triton kernels that may fail: they are compiled when they are first called, and checked then.

In: a launch and a check of its result. Out: whether the kernel can be relied on. After a failure, torch does the work.
"""

from collections.abc import Callable, Hashable
from logging import getLogger

import torch

try:  # Triton comes with torch for CUDA
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    triton = None

__all__ = ["INTERPRETED", "Launcher", "triton"]

log = getLogger(__name__)

#: Whether Triton interprets kernels on the CPU, as in tests.
INTERPRETED = triton is not None and bool(triton.knobs.runtime.interpret)


class Launcher:
    """Of kernels that are used together."""

    def __init__(self, what: str) -> None:
        """`what`: the kernels, for the log."""
        self.what = what
        #: Kinds of launches that were checked.
        self.checked: set[Hashable] = set()
        #: Whether a launch or a check has failed.
        self.broken = False

    def usable(self, tensor: torch.Tensor) -> bool:
        """Whether kernels can run on the device of this tensor."""
        return triton is not None and not self.broken and (tensor.is_cuda or INTERPRETED)

    def launch(self, tensor: torch.Tensor, kind: Hashable, run: Callable[[], None], check: Callable[[], None]) -> bool:
        """Run a kernel on the device of a tensor; the first time of its kind, check the result, which raises.

        False: it failed, and no kernel of this launcher is usable from now on.
        """
        try:
            # Triton launches on the current device.
            with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
                run()
            if kind not in self.checked:
                check()
                self.checked.add(kind)
        except torch.OutOfMemoryError:
            raise  # not the kernel's fault
        except Exception as error:  # noqa: BLE001 - Triton compiles when it is first called, and fails in many ways
            self.broken = True
            log.warning("%s disabled, using torch's: %s", self.what, error)
            return False
        return True
