"""Sample texts and questions to try docs/your-data.md with.

    python examples/sample_data.py try

Writes `try/texts`, 600 articles of a generated encyclopedia (one `.txt` file each; articles about albums, paintings and
ships are sections of three `.md` files), and `try/questions.csv` with 1,000 rows of `question` and `answer`, without
decompositions. A question needs one to three searches. Most articles are distractors.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question
from stepladder.data.atlas.articles import Library, write_library
from stepladder.data.atlas.questions import write_questions
from stepladder.data.atlas.world import World

ARTICLES, QUESTIONS, SEARCHES = 600, 1000, 3
#: Kinds of articles that share one Markdown file; every other article is a text file.
IN_SECTIONS = {"album": "albums", "painting": "paintings", "ship": "ships"}


def write_sample(folder: Path, seed: int) -> None:
    """Write the texts and questions of one world into a folder that has neither yet."""
    texts, table = folder / "texts", folder / "questions.csv"
    if texts.exists() or table.exists():
        raise StepladderError(f"{folder} has texts or questions.csv already; expected a new or an empty folder")
    library = write_library(World(ARTICLES, seed))
    texts.mkdir(parents=True)
    _write_texts(texts, library)
    _write_questions(table, library)


def _write_texts(folder: Path, library: Library) -> None:
    sections: dict[str, list[str]] = defaultdict(list)
    for entity, passage in zip(library.world.entities, library.passages):
        if entity.kind in IN_SECTIONS:
            sections[IN_SECTIONS[entity.kind]].append(f"## {passage.title}\n\n{passage.text}\n")
        else:
            (folder / f"{passage.title}.txt").write_text(f"{passage.text}\n", encoding="utf-8")
    for name, parts in sections.items():
        (folder / f"{name}.md").write_text("\n".join(parts), encoding="utf-8")


def _write_questions(path: Path, library: Library) -> None:
    drawn, _ = write_questions(library.world, library, "train", 2 * QUESTIONS)
    chosen: list[Question] = [question for question in drawn if question.searches_needed <= SEARCHES][:QUESTIONS]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("question", "answer"))
        table.writerows((question.text, question.answers[0]) for question in chosen)


def main() -> None:
    """Write the sample and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder to write into")
    parser.add_argument("--seed", type=int, default=7, help="seed of the generated world")
    options = parser.parse_args()
    try:
        write_sample(options.out, options.seed)
    except StepladderError as error:
        parser.exit(1, f"{error}\n")
    print(f"{options.out}: {len(list((options.out / 'texts').iterdir()))} files in texts, {QUESTIONS} questions")


if __name__ == "__main__":
    main()
