"""Imports Triton, which comes with torch for CUDA. Elsewhere `triton` is None."""

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    triton = tl = None

__all__ = ["INTERPRETED", "tl", "triton"]

#: Whether Triton interprets kernels on the CPU, as in tests.
INTERPRETED = triton is not None and bool(triton.knobs.runtime.interpret)
