"""Checks that words of an earlier vocabulary do not come back. Run by `make lint`: `python checks/words.py [FOLDER]`.

In: the repository. Out: one line per finding (file, line, the word, what to write instead), exit status 1 if there is
one. A line that must keep such a word, such as the fixed label of a seed, ends with `word-check: ignore`.
"""

import re
import subprocess
import sys
from pathlib import Path

#: Patterns and what to write instead.
WORDS = {
    r"workshops?": "run context",
    r"groves?": "trees",
    r"barren": "leaf to expand",
    r"spoilt|spoilers?": "corrupted, corruptions",
    r"sift(s|ed|ing)?": "filter",
    r"narrat(e|es|or)": "trace printer",
    r"learnt": "learned, trained",
    r"roll-outs?": "rollout",
    r"beyond noise": "statistically significant",
    r"no longer holds?": "is stale",
    r"goes? on": "continues, resumes",
    r"told apart": "distinguished",
    r"whoever": "name the component",
    r"encoded? anew": "retokenize",
    r"(?:one|an?) (?!(?:is|was|as|in|of|to|by|or|and|for|with|from|that|on)\b)[a-z]+ an? "
    r"(?:update|step|question|agent|episode|search|row|file|token|stage|request|line|node)": "one ... per ...",
}
_FOLDERS = ("src", "recipes", "docs", "examples", "README.md", "Makefile")
_ENDINGS = {".py", ".md", ".yaml", ".html", ".js", ".ipynb", ""}
_IGNORE = "word-check: ignore"
_PATTERNS = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in WORDS.items()}


def findings(root: Path) -> list[str]:
    """Every forbidden word below a folder, as `file:line: ...`."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", *_FOLDERS], capture_output=True, text=True
    )
    found = []
    for name in filter(None, listed.stdout.split("\n")):
        path = root / name
        if path.suffix not in _ENDINGS or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if _IGNORE in line:
                continue
            for pattern, instead in _PATTERNS.items():
                if match := pattern.search(line):
                    found.append(f"{name}:{number}: '{match[0]}': write '{instead}'")
    return found


def main() -> int:
    """Print the findings."""
    found = findings(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(found) if found else "words: none of the old vocabulary")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
