"""Sampling: samples, texts and answers, and the likelihood of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.api.progress import open_run
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from reverie.evaluation.reports import Notify
    from reverie.families.language.model import TextCost
    from reverie.families.seq2seq.model import Answer
    from reverie.runs.run import Run
    from reverie.runs.samples import Samples
    from reverie.runs.sampling_options import Options


@renamed_options
def sample_to(
    run: str | Path | Run, n: int, out: str | Path, first: int = 0, *, overwrite: bool = False, device: str = "auto",
    processes: int = 1, on_progress: OnProgress | None = None, notify: Notify | None = None, **options: Unpack[Options],
) -> Sequence[Path]:  # fmt: skip
    """Write n samples to a file or folder and return the files: `reverie.api.sample_to("runs/spiral", 10**6, "points.npy")`.

    Arrays and folders are written batch by batch, with one batch of each process in memory.  overwrite: replace samples in
    the folder, or the labels file next to the array; without it an image folder that an equal call started is resumed.
    processes: number of local processes that share the work.
    """
    from reverie.base.files import check_folder
    from reverie.runs.destinations import check_capacity, check_kind, check_output, is_film, is_folder, is_streamed
    from reverie.runs.distributed import distributed_run
    from reverie.runs.resumable_output import sample_to_folder
    from reverie.runs.writing import write

    run = open_run(run, device)
    images = is_folder(out) and run.kind == "images"
    check_kind(out, run.kind)
    check_folder(Path(out)) if images else check_output(out, overwrite)
    if run.kind not in ("text", "pairs"):
        check_capacity(out, n, run.config.data.shape)
    with distributed_run(run, processes) as run:
        if run.kind in ("text", "pairs"):
            return run.sample(n, first, on_progress=on_progress, **options).save(out)
        if images:
            notify = notify or (lambda text: None)
            return sample_to_folder(
                run, n, Path(out), first, overwrite=overwrite, on_progress=on_progress, notify=notify, options=options
            )
        if is_streamed(out, run.config.data.shape):
            return write(run.batches(n, first, on_progress=on_progress, **options), n, out, overwrite)
        return run.sample(n, first, film=is_film(out), on_progress=on_progress, **options).save(out, overwrite)


@renamed_options
def sample(
    run: str | Path | Run, n: int = 16, first: int = 0, *, out: str | Path | None = None, overwrite: bool = False,
    film: bool = False, device: str = "auto", processes: int = 1, on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Samples:  # fmt: skip
    """Return n samples of a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`.

    first: index of the first sample, so that `reverie.sample(run, 1, first=k)` is sample k of the seed alone; out, overwrite:
    as in `.save(out, overwrite)`; film: keep the frames of the trajectory, for .gif and .mp4; processes: number
    of local processes that share the work.
    """
    from reverie.runs.destinations import check_capacity, check_kind, check_output, is_film
    from reverie.runs.distributed import distributed_run

    run = open_run(run, device)
    if out is not None:
        check_kind(out, run.kind)
        check_output(out, overwrite)
        if run.kind not in ("text", "pairs"):
            check_capacity(out, n, run.config.data.shape)
        film = film or is_film(out)
    with distributed_run(run, processes) as shared:
        samples = shared.sample(n, first, film=film, on_progress=on_progress, **options)
    if out is not None:
        samples.save(out, overwrite)
    return samples


@renamed_options
def write_text(run: str | Path | Run, first: int = 0, *, device: str = "auto", **options: Unpack[Options]) -> Iterator[str]:
    """Yield the pieces of a sampled text: `"".join(reverie.api.write_text("runs/prose", prompt="The "))`."""
    return open_run(run, device).written(first, **options)


def answers(
    run: str | Path | Run, source: str, beams: int = 4, *, length: int | None = None, device: str = "auto"
) -> list[Answer]:
    """Return the most likely answers by beam search, best first: `reverie.answers("runs/dates", "5 march 1998")[0].text`.

    beams: width of the search, 1 is greedy; length: characters at most.  Each answer has its `log_prob` given the source, in
    nats.
    """
    return open_run(run, device).answers(source, beams, length)


def text_cost(run: str | Path | Run, text: str, *, device: str = "auto") -> TextCost:
    """Return the exact negative log-likelihood of a text: `reverie.text_cost("runs/prose", "Hello").nats` is -log p."""
    from reverie.families.language.model import LanguageModel

    run = open_run(run, device)
    if not isinstance(run.model, LanguageModel):
        raise UserError(f"{run.path} is a run of {run.kind}, and the likelihood of a text needs a run of text; give one")
    if not text:
        raise UserError("the text is empty: ''; give at least one character")
    return run.model.cost([text])
