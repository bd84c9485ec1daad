"""Alignment of a sequence-to-sequence model: attention weights between answer and source."""

from __future__ import annotations

from pathlib import Path

from reverie.base.errors import UserError
from reverie.draw.picture import INK, check_picture, figure, matplotlib_text, save
from reverie.evaluation.pair_metrics import pair_model
from reverie.runs.run import Run, load

MAX_TOKENS = 120  # tokens shown on a side
CELL = 0.17  # inches
MIN_INCHES = 2.4  # minimum side of the figure


def _marks(names: list[str]) -> list[str]:
    return [matplotlib_text(name.replace("the end", "\u25a0").replace(" ", "\u00b7").replace("\n", "\u21b5")) for name in names]


def draw(run: str | Path | Run, out: Path, prompt: str | None = None, device: str = "auto") -> list[Path]:
    """Draw a heat map per layer and head: one row per token of the answer, one column per token of the source."""
    check_picture(out)
    opened = run if isinstance(run, Run) else load(run, device)
    model = pair_model(opened)
    if prompt is None:
        prompt = opened.sample(1).pairs[0][0]
    sources, targets, layers = model.alignment(prompt)
    if not layers:
        raise UserError(f"{opened.path} was trained without attention, so it has no alignment; train with attention=dot")
    if len(sources) > MAX_TOKENS:
        raise UserError(
            f"the source has {len(sources)} tokens, above the limit of {MAX_TOKENS} of a figure; give a shorter one"
        )
    is_complete = len(targets) <= MAX_TOKENS  # answers of untrained models rarely end
    targets, layers = targets[:MAX_TOKENS], [layer[:, :MAX_TOKENS] for layer in layers]
    heads = layers[0].shape[0]
    width, height = (max(MIN_INCHES, CELL * len(side) + 0.7) for side in (sources, targets))
    fig = figure(width * heads, 0.6 + height * len(layers))
    panels = fig.subplots(len(layers), heads, squeeze=False)
    for k, layer in enumerate(layers):
        for head in range(heads):
            axes = panels[k][head]
            axes.imshow(layer[head], cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(
                range(len(sources)), _marks(sources), fontsize=7, rotation=90 if max(map(len, sources[:-1])) > 1 else 0
            )
            axes.set_yticks(range(len(targets)), _marks(targets), fontsize=7)
            axes.tick_params(length=0, pad=1)
            if len(layers) * heads > 1:
                axes.set_title(f"layer {k + 1}, head {head + 1}", fontsize=8, color=INK)
    subject = "the answer" if is_complete else f"the first {MAX_TOKENS} tokens of the answer"
    fig.suptitle(f"attention of {subject} (down)\nto the source (across)", fontsize=9, color=INK)
    save(fig, out)
    return [out]
