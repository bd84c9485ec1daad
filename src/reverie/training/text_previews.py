"""Previews of text: samples of the same seeds during training."""

from __future__ import annotations

import numpy as np
import torch

from reverie.base.files import atomic, own_file
from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.data.text_windows import TextWindows, codes_of, text_of, texts_of
from reverie.families.model import SamplingInputs
from reverie.families.seq2seq.model import PairModel
from reverie.runs.run import Run
from reverie.text.passages import Passages
from reverie.training.previews import FOLDER

COUNT, LENGTH = 3, 200  # texts of a preview, and characters of each
ANSWERS = 8  # answers to example prompts, of a model of pairs
RULE = "-" * 60
STRING = 8  # length of compared strings, in characters
SEARCHED, COMPARED = 2**18, 20 * LENGTH  # upper limits of searched training text and of held-out text, in characters


class TextPreviews:
    """Writes previews into the run folder, and compares their strings with the training text.

    novelty: the share of strings of STRING characters that the training text lacks, in samples and in held-out text.
    """

    truth = None

    def __init__(self, run: Run, train: Dataset, held_out: Dataset) -> None:
        self.run, self.novelty = run, dict[str, float]()
        is_text = isinstance(train.x, TextWindows) and isinstance(held_out.x, TextWindows)
        self.known = train.x.codes[:SEARCHED] if isinstance(train.x, TextWindows) and is_text else None
        self.real = held_out.x.codes[:COMPARED] if isinstance(held_out.x, TextWindows) and is_text else None

    def take(self, i: int) -> tuple[None, None]:
        """Write the preview of step i."""
        model = self.run.model
        is_pairs = isinstance(model, PairModel)
        inputs = SamplingInputs(image_seeds(0, ANSWERS if is_pairs else COUNT), options={} if is_pairs else {"length": LENGTH})
        with torch.no_grad():
            *_, last = model.frames(inputs)
        rows = model.decode(last.x0).cpu().numpy()
        if is_pairs:
            texts = ["\n".join(f"{text_of(source)} \u2192 {text_of(target)}" for source, target in rows)]
        else:
            texts = ["\n".join(texts_of(row)) for row in rows]
            self._compare(texts)
        with atomic(own_file(self.run.path, f"{FOLDER}/step-{i:07d}.txt")) as temporary:
            temporary.write_bytes(f"\n{RULE}\n".join(texts).encode("utf-8", "backslashreplace") + b"\n")
        return None, None

    def finish_share(self) -> float:
        """Return 0, as `finish` takes no time."""
        return 0.0

    def _compare(self, texts: list[str]) -> None:
        codes = [codes_of(text) for text in texts if len(text) >= STRING]
        if self.known is None or self.real is None or not codes or len(self.real) < STRING:
            return
        pieces = [self.real[k : k + LENGTH] for k in range(0, len(self.real) - STRING + 1, LENGTH)]
        novel = Passages(self.known, [*codes, *pieces]).novel(STRING)
        sampled, held_out = novel[: len(codes)], novel[len(codes) :]
        self.novelty = {"novel": round(float(sampled.mean()), 4), "held_out_novel": round(float(np.nanmean(held_out)), 4)}

    def finish(self) -> None:
        """Do nothing: text has no film."""
        return
