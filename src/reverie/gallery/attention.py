"""Attention weights of a language model for a sentence, by layer and head."""

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
MAX_TOKENS = 80  # tokens shown
MAX_NAMED = 48  # tokens up to which their names are shown


def heads_of(run: Run, sentence: str) -> tuple[list[str], Tensor]:
    """Return the tokens of a sentence after the start, and their attention weights: (layers, heads, T, T)."""
    model = run.model
    if not isinstance(model, NeuralLanguageModel) or not isinstance(model.net, Decoder):
        raise UserError(f"{run.path} is a run of {run.config.family.name} on {run.kind}; give a run of a transformer on text")
    ids = model.tokenizer.encode(sentence)[:MAX_TOKENS]
    if not len(ids):
        raise UserError("the sentence is empty; give one with --prompt")
    with torch.no_grad():
        x = model.inputs(torch.from_numpy(ids).long()[None].to(model.device))
        weights = torch.stack(model.net.attention_weights(x))[:, 0].cpu()
    return ["start", *(model.tokenizer.spelled(int(k)) for k in ids)], weights


def draw(run: str | Path | Run, out: Path, prompt: str = SENTENCE, device: str = "auto") -> list[Path]:
    """Draw a heat map per layer and head."""
    check_picture(out)
    opened = run if isinstance(run, Run) else load(run, device)
    names, weights = heads_of(opened, prompt)
    layers, heads = weights.shape[:2]
    side = 2.6 if len(names) <= MAX_NAMED else 2.2
    fig = figure(side * heads, 0.5 + side * layers)
    size = min(8.0, max(4.5, 96 / len(names)))  # font size that fits the rows
    tick_labels = [matplotlib_text(name.replace(" ", "\u00b7").replace("\n", "\u21b5")) for name in names]
    for (layer, head), axes in zip(
        ((a, b) for a in range(layers) for b in range(heads)), fig.subplots(layers, heads, squeeze=False).flat, strict=True
    ):
        axes.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=max(0.3, float(weights[layer, head, 1:].max())))
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, color=INK)
        labels = tick_labels if len(names) <= MAX_NAMED else []
        axes.set_xticks(range(len(labels)), labels, fontsize=size, rotation=90 if max(map(len, names[1:])) > 1 else 0)
        axes.set_yticks(range(len(labels)), labels, fontsize=size)
        axes.tick_params(length=0, pad=1)
    fig.suptitle("Attention weights of each token (row) on earlier tokens (column)", fontsize=10, color=INK)
    save(fig, out)
    return [out]
