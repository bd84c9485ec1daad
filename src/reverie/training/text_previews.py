"""Previews of text: the same seeds written again and again while a model learns."""

from __future__ import annotations

import torch

from reverie.base.files import atomic, own_file
from reverie.base.noise import image_seeds
from reverie.data.windows import text_of, texts_of
from reverie.families.model import DrawRequest
from reverie.families.seq2seq.model import PairModel
from reverie.runs.run import Run
from reverie.training.previews import FOLDER

COUNT, LENGTH = 3, 200  # texts of a preview, and characters of each
ANSWERS = 8  # to examples, of a model of pairs
RULE = "-" * 60


class TextPreviews:
    """Writes previews into the run folder; what they look like beside the data is not told, so there is no `truth`."""

    truth = None

    def __init__(self, run: Run) -> None:
        self.run = run

    def take(self, i: int) -> tuple[None, None]:
        """Write the texts of step i."""
        model = self.run.model
        paired = isinstance(model, PairModel)
        wanted = DrawRequest(image_seeds(0, ANSWERS if paired else COUNT), options={} if paired else {"length": LENGTH})
        with torch.no_grad():
            *_, last = model.frames(wanted)
        rows = model.decode(last.x0).cpu().numpy()
        if paired:
            texts = ["\n".join(f"{text_of(source)} \u2192 {text_of(target)}" for source, target in rows)]
        else:
            texts = ["\n".join(texts_of(row)) for row in rows]
        with atomic(own_file(self.run.path, f"{FOLDER}/step-{i:07d}.txt")) as aside:
            aside.write_bytes(f"\n{RULE}\n".join(texts).encode("utf-8", "backslashreplace") + b"\n")
        return None, None

    def finish_share(self) -> float:
        """Return that `finish` takes no time."""
        return 0.0

    def finish(self) -> None:
        """Leave the last preview as it is."""
        return
