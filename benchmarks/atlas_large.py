"""Atlas `large`: 100,000 passages generated and indexed, with the time and memory it takes."""

import resource
import sys
import tempfile
import time
from pathlib import Path

from stepladder.data.atlas import generate_atlas
from stepladder.retrieval.index.build import build_index, open_index


def peak_gb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    started = time.perf_counter()
    atlas = generate_atlas("large")
    generated = time.perf_counter()
    count = sum(len(questions) for questions in atlas.questions.values())
    print(f"generated {len(atlas.passages):,} passages and {count:,} questions in {generated - started:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        info = build_index(atlas.passages, Path(folder) / "index", source="atlas-large")
        indexed = time.perf_counter()
        print(f"indexed them in {indexed - generated:.1f} s, {info.size / 1e6:,.0f} MB on disk")
        retriever = open_index(Path(folder) / "index")
        questions = atlas.questions["test"][:2000]
        asked = time.perf_counter()
        results = retriever.search([question.text for question in questions], 3)
        seconds = time.perf_counter() - asked
        assert all(results), "every question should find something"
        print(f"searched with {len(questions):,} whole questions at {len(questions) / seconds:,.0f} queries/s")
        retriever.close()
    print(f"altogether {indexed - started:.1f} s and {peak_gb():.2f} GB at the peak (aim: under 120 s and 3 GB)")


if __name__ == "__main__":
    main()
