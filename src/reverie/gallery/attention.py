"""Attention of a language model: where each token of a sentence looks, for every layer and head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.draw.picture import INK, check_picture, figure, matplotlib_text, save
from reverie.families.language.neural import NeuralLanguageModel
from reverie.nets.sequence import Decoder
from reverie.runs.run import Run, load

SENTENCE = "To be, or not to be, that is the question"
MOST = 80  # tokens that are shown
NAMED = 48  # tokens whose names are written


def heads_of(run: Run, sentence: str) -> tuple[list[str], Tensor]:
    """Return the tokens of a sentence, after the start, and what each attends to: (layers, heads, T, T)."""
    model = run.model
    if not isinstance(model, NeuralLanguageModel) or not isinstance(model.net, Decoder):
        raise UserError(
            f"{run.path} is a run of {run.config.family.name} on {run.kind}; this gallery shows transformers of text"
        )
    ids = model.tokenizer.encode(sentence)[:MOST]
    if not len(ids):
        raise UserError("there is nothing to attend to in an empty sentence; give one with --prompt")
    with torch.no_grad():
        x = model.inputs(torch.from_numpy(ids).long()[None].to(model.device))
        found = torch.stack(model.net.attention_weights(x))[:, 0].cpu()
    return ["start", *(model.tokenizer.spelled(int(k)) for k in ids)], found


def draw(run: str | Path | Run, out: Path, prompt: str = SENTENCE, device: str = "auto") -> list[Path]:
    """Draw a heat map for each layer and head into one picture."""
    check_picture(out)
    opened = run if isinstance(run, Run) else load(run, device)
    names, found = heads_of(opened, prompt)
    layers, heads = found.shape[:2]
    side = 2.6 if len(names) <= NAMED else 2.2
    made = figure(side * heads, 0.5 + side * layers)
    size = min(8.0, max(4.5, 96 / len(names)))  # of letters: as large as their rows leave room for
    marks = [matplotlib_text(name.replace(" ", "\u00b7").replace("\n", "\u21b5")) for name in names]
    for (layer, head), axes in zip(
        ((a, b) for a in range(layers) for b in range(heads)), made.subplots(layers, heads, squeeze=False).flat, strict=True
    ):
        axes.imshow(found[layer, head], cmap="Blues", vmin=0, vmax=max(0.3, float(found[layer, head, 1:].max())))
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, color=INK)
        shown = marks if len(names) <= NAMED else []
        axes.set_xticks(range(len(shown)), shown, fontsize=size, rotation=90 if max(map(len, names[1:])) > 1 else 0)
        axes.set_yticks(range(len(shown)), shown, fontsize=size)
        axes.tick_params(length=0, pad=1)
    made.suptitle("How much each token (row) attends to those before it (column)", fontsize=10, color=INK)
    save(made, out)
    return [out]
