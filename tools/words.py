"""Check identifiers and prose against words that practitioners do not use; docs/glossary.md has the ones they do.

python -m tools.words [FILE OR FOLDER ...]    list each occurrence with its replacement; without paths, of the repository
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHECKED = "src tests docs examples benchmarks tools README.md CONTRIBUTING.md CHANGELOG.md Makefile zensical.toml"
ENDINGS = {".py", ".js", ".css", ".html", ".md", ".toml", ".yaml", ".sbatch", ""}
WORDS = """told tell tells telling teller untold: conditioned on, report, show, distinguish
wish wishes wished asked: request, option, requested
foresee foresees foreseen: estimate
spoken minded: describe or format; handled
taught teaches: trained, distilled
judge judges judged: classifier; measured
lesson lessons: demo, distillation target
patient illness illnesses remedy remedies unsure: diagnosis, problem, suggestion; uncertain
manner manners seam obey obeys anew nought parted: profile; interface; again; zero; split"""  # in prose and in identifiers
NAMES = """said spread: description; std or evenly spaced
looking way ways house room rooms: view, strategy, package, memory"""  # only in names of Python
PHRASES = r"""(?:go|goes|gone|going|went) on(?: with)?\b(?! to)|by heart: resume, continue; memorized
(?:is|was) said|sa(?:y|ys|id) (?:otherwise|so): reported, the default, unless
led (?:by|away)|lead(?:s|ing)? away|leaves the house: guided with scale; export
drawn by|draws? (?:images?|digits|pictures): sampled with, generate
what is (?:there|expected)|kinds? of image|of which kind: noisy sample, predicted clean sample; cluster
as good as|not bad|taken apart|speaks? of|stands? (?:there|beside|above|before|alone|in): a number, or the field's term"""
ALLOWED = {  # files, and their lines in which all words are allowed
    r"tools/words\.py|src/reverie/base/deprecations\.py|.*/(vendor|axe)/.*|docs/licences\.md": "",
    r"tests/(runs/(format1|format2|old_keys)/.*|runs/test_old_keys\.py|base/test_deprecations\.py)": "",  # old names
    r"src/reverie/(runs/(config|outputs)|training/finetuning|steering/.*results)\.py": r"\": \"|old name|dicts|[. ]spread",
    r"CHANGELOG\.md": r"new names?|renamed|deprecated",
    r"src/reverie/(nets|families/vae|exchange/page)/.*|.*/test_(clusters|start)\.py": "tell|told|code_spread",  # weight keys
    r"src/reverie/data/pair_sets\.py": "spoken",  # numbers in words
}


def _table(text: str) -> dict[str, str]:
    return {word: better for group, better in (line.rsplit(": ", 1) for line in text.split("\n")) for word in group.split()}


def _parts(text: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)]


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, word and replacement of each occurrence in a file."""
    name = path.relative_to(ROOT).as_posix()
    text = re.sub(r"(\.|def )tell\(", "(", path.read_text(errors="replace"))  # of files
    allowed = [re.compile(lines) for files, lines in ALLOWED.items() if re.fullmatch(files, name)]
    lines, words, names = text.split("\n"), _table(WORDS), _table(NAMES)
    hits = {(k, word, words[word]) for k, line in enumerate(lines, 1) for word in _parts(line) if word in words}
    for expression, better in (line.rsplit(": ", 1) for line in PHRASES.split("\n")):
        for m in re.finditer(rf"\b(?:{expression})\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            hits.add((text.count("\n", 0, m.start()) + 1, " ".join(m[0].split()), better))
    if path.suffix == ".py":
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.NAME]
        hits |= {(t.start[0], word, names[word]) for t in tokens for word in _parts(t.string) if word in names}
    yield from sorted(hit for hit in hits if not any(pattern.search(lines[hit[0] - 1]) for pattern in allowed))


def main() -> None:
    """Print all occurrences; exit with code 1 if there are any."""
    places = [Path(p).resolve() for p in sys.argv[1:] or map(str, (ROOT / p for p in CHECKED.split()))]
    files = [f for p in places for f in (sorted(p.rglob("*")) if p.is_dir() else [p]) if f.is_file() and f.suffix in ENDINGS]
    hits = [f"{file.relative_to(ROOT)}:{k}: {word!r}; write: {better}" for file in files for k, word, better in found(file)]
    print("\n".join(hits))
    sys.exit(f"{len(hits)} unusual words; write as docs/glossary.md does, or add to ALLOWED in tools/words.py" if hits else 0)


if __name__ == "__main__":
    main()
