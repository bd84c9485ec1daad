"""The verbs of drawing: samples, texts and answers, and what a text costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.api.watching import opened
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from reverie.evaluation.reports import Say
    from reverie.families.language.model import TextCost
    from reverie.families.seq2seq.model import Answer
    from reverie.runs.options import Options
    from reverie.runs.run import Run
    from reverie.runs.samples import Samples


@renamed_options
def sample_to(
    run: str | Path | Run, n: int, out: str | Path, first: int = 0, *, overwrite: bool = False, device: str = "auto",
    processes: int = 1, on_progress: OnProgress | None = None, say: Say | None = None, **options: Unpack[Options],
) -> Sequence[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says, arrays and folders batch by batch; return the files written.

    overwrite: replace samples that were put into the folder, or labels beside the array, before; a folder of images that an
    equal call began is gone on with otherwise.  processes: that share the drawing on this machine.
    `reverie.api.sample_to("runs/spiral", 10**6, "points.npy")` holds one batch of each process in memory at a time.
    """
    from reverie.base.files import check_folder
    from reverie.runs.destinations import check_kind, check_output, check_room, is_folder, streams, wants_film
    from reverie.runs.restart import draw_to_folder
    from reverie.runs.shared import shared_run
    from reverie.runs.writing import write

    run = opened(run, device)
    images = is_folder(out) and run.kind == "images"
    check_kind(out, run.kind)
    check_folder(Path(out)) if images else check_output(out, overwrite)
    if run.kind not in ("text", "pairs"):
        check_room(out, n, run.config.data.shape)
    with shared_run(run, processes) as run:
        if run.kind in ("text", "pairs"):
            return run.sample(n, first, on_progress=on_progress, **options).save(out)
        if images:
            said = say or (lambda text: None)
            return draw_to_folder(run, n, Path(out), first, overwrite=overwrite, tell=on_progress, say=said, options=options)
        if streams(out, run.config.data.shape):
            return write(run.batches(n, first, on_progress=on_progress, **options), n, out, overwrite)
        return run.sample(n, first, film=wants_film(out), on_progress=on_progress, **options).save(out, overwrite)


@renamed_options
def sample(
    run: str | Path | Run, n: int = 16, first: int = 0, *, out: str | Path | None = None, overwrite: bool = False,
    film: bool = False, device: str = "auto", processes: int = 1, on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Samples:  # fmt: skip
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`.

    first: the number of the first one: sample k of a seed alone is `reverie.sample(run, 1, first=k)`; out, overwrite: short
    for `.save(out, overwrite)`; film: keep the frames on the way, for .gif and .mp4; processes: that share the drawing on this
    machine.
    """
    from reverie.runs.destinations import check_kind, check_output, check_room, wants_film
    from reverie.runs.shared import shared_run

    run = opened(run, device)
    if out is not None:
        check_kind(out, run.kind)
        check_output(out, overwrite)
        if run.kind not in ("text", "pairs"):
            check_room(out, n, run.config.data.shape)
        film = film or wants_film(out)
    with shared_run(run, processes) as shared:
        made = shared.sample(n, first, film=film, on_progress=on_progress, **options)
    if out is not None:
        made.save(out, overwrite)
    return made


@renamed_options
def write_text(run: str | Path | Run, first: int = 0, *, device: str = "auto", **options: Unpack[Options]) -> Iterator[str]:
    """Yield a text piece by piece as a run writes it: `"".join(reverie.api.write_text("runs/prose", prompt="The "))`."""
    return opened(run, device).written(first, **options)


def answers(
    run: str | Path | Run, source: str, beams: int = 4, *, length: int | None = None, device: str = "auto"
) -> list[Answer]:
    """Return the likeliest answers to a text, the likeliest first: `reverie.answers("runs/dates", "5 march 1998")[0].text`.

    beams: candidates that the search keeps at a time, 1 is greedy; each answer has its `log_prob` given the source, in nats.
    """
    return opened(run, device).answers(source, beams, length)


def text_cost(run: str | Path | Run, text: str, *, device: str = "auto") -> TextCost:
    """Return what a text costs under a language model, exactly: `reverie.text_cost("runs/prose", "Hello").nats` is -log p."""
    from reverie.families.language.model import LanguageModel

    run = opened(run, device)
    if not isinstance(run.model, LanguageModel):
        raise UserError(f"{run.path} is a run of {run.kind}; only runs of text tell what a text costs")
    if not text:
        raise UserError("an empty text costs nothing; give one with at least a character")
    return run.model.cost([text])
