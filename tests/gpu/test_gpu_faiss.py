"""Exact search on a GPU finds what the CPU finds. Needs a FAISS with GPU support (the package faiss-gpu)."""

import numpy as np
import pytest

from stepladder.retrieval.index.gpu_index import GpuIndex, open_on_gpus
from stepladder.retrieval.index.vector_index import FlatIndex, Metric, import_faiss

pytestmark = pytest.mark.skipif(
    not hasattr(import_faiss(), "GpuIndexFlat") or not import_faiss().get_num_gpus(), reason="FAISS has no GPU"
)


@pytest.mark.parametrize("metric", ["inner_product", "l2"])
@pytest.mark.parametrize("half", [False, True])
def test_a_gpu_finds_what_the_cpu_finds(metric: Metric, half: bool) -> None:
    random = np.random.default_rng(0)
    vectors, queries = (random.standard_normal((count, 768), dtype=np.float32) for count in (100_000, 300))
    expected_scores, expected = FlatIndex(vectors, metric).search(queries, 32)
    scores, found = GpuIndex(vectors, metric, [0], half).search(queries, 32)
    overlap = np.mean([len(set(one) & set(other)) / 32 for one, other in zip(expected.tolist(), found.tolist())])
    assert overlap > (0.98 if half else 0.9999)
    assert np.allclose(scores, expected_scores, rtol=1e-2 if half else 1e-4)
    opened = open_on_gpus(vectors, metric, "cuda")
    assert opened is not None
    assert (opened.search(queries, 1)[1] == expected[:, :1]).mean() > 0.99
