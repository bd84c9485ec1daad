"""TensorBoard events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.families.diffusion.noise_levels import T_RANGES
from reverie.runs.step import Step

FOLDER = "tensorboard"


def scalars(step: Step) -> Iterator[tuple[str, float]]:
    """Yield the scalars of a report by name."""
    what = "bound" if step.unit else "loss"
    single = {"loss/training": step.loss, f"{what}/held_out": step.held_out, f"{what}/held_out_raw": step.raw_held_out}
    for name, value in {**single, "learning_rate": step.learning_rate, "steps_per_second": step.per_second}.items():
        if value is not None:
            yield name, value
    for kind, levels in (("held_out_by_noise", step.held_out_levels), ("noise_error", step.noise_error_levels)):
        for k, value in enumerate(levels):
            yield f"{kind}/{k + 1}_of_{T_RANGES}", value


@contextmanager
def recorder(run: Path, enabled: bool) -> Iterator[Callable[[Step], None]]:
    """Yield a function that writes the scalars of a report to the TensorBoard folder of the run; without effect if disabled."""
    if not enabled:
        yield lambda step: None
        return
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(own_file(run, f"{FOLDER}/events").parent))

    def record(step: Step) -> None:
        for name, value in scalars(step):
            writer.add_scalar(name, value, step.i)

    try:
        yield record
    finally:
        writer.close()


def check(enabled: bool) -> bool:
    """Refuse --tensorboard if its package is missing."""
    if enabled:
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise UserError("--tensorboard needs the package tensorboardX: pip install 'reverie[tensorboard]'") from None
    return enabled
