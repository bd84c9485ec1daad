"""Denoising diffusion as a model: a loss to train with and an iterator to sample from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.noise import Noise, mix_seed
from reverie.base.precision import Precision, default_precision
from reverie.data import Dataset
from reverie.data.augment import Augment
from reverie.data.codec import Codec
from reverie.data.dataset import evenly_spaced_indices
from reverie.data.kind import Kind, kind_of
from reverie.diffusion.condition import drop_conditions
from reverie.diffusion.denoiser import Clip, Denoiser, NetDenoiser, Steer, WithCondition, WithConditioning
from reverie.diffusion.error_curve import WithVariance
from reverie.diffusion.lattice import LatticeDenoiser
from reverie.diffusion.learned import Learned
from reverie.diffusion.loss import SQUARED, Measure, build_weight, draw_times, loss_of, variance_loss
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame, Sampler, start, trajectory
from reverie.diffusion.samplers.onestep import DDPM
from reverie.families.diffusion.clusters import Clusters, WithClusters
from reverie.families.diffusion.distillation import DistillationTarget, Distilled, profile_of
from reverie.families.diffusion.likelihood import DiffusionLikelihood
from reverie.families.diffusion.likelihood_training import end_costs
from reverie.families.diffusion.noise_levels import held_out_metrics, optimum_levels
from reverie.families.diffusion.sampling import STEERING, SamplingProfile, build_guidance, build_sampling
from reverie.families.model import SamplingInputs
from reverie.nets.dropout import seeded_dropout

HISTOGRAMS_OF = 20_000  # data that are not in memory, by which a denoiser of levels begins
# Of the bound in the loss of a network that tells variances.  arXiv:2102.09672 has 0.001 for a million steps; in a few hundred
# of digits8 0.03 taught variances worth 0.05 bits/dim more at 10 steps, and the held-out loss of the means was the same.
VARIANCE_SHARE = 0.03
CLUSTERS_HIDDEN = 0.1  # how often, so that the network can do without, too, as it must in steering
UNTOLD = -1e9  # in rows that are kept with the weights, which are finite: what is not told
VARIANCE_STEPS = 20  # of the chain whose bound that is, where training is in continuous time


class Diffusion(DiffusionLikelihood):
    """A denoiser, the codec around it, and the way it is trained.

    shape: that of one datum in user units; model_shape: in model units, which is what the denoiser sees.  label_dropout: how
    often a label is hidden in training, which is what classifier-free guidance needs.  augment: how the data are changed in
    training.  labels: how many there are.  measure: what an error costs.  likelihood: whether it is trained for that, and its
    figures are the bound and not the loss.  examples: how many rows of conditions of the training data it keeps, each of so
    many numbers, to draw by where none is asked for.  distilled: of one that draws in a few evaluations; lesson: what it is
    taught by.  clusters: what it is told of images beside their labels.
    """

    def __init__(
        self,
        denoiser: NetDenoiser,
        codec: Codec,
        shape: tuple[int, ...],
        weight: str = "uniform",
        times: str = "stratified",
        label_dropout: float = 0.1,
        augment: Augment | None = None,
        labels: int = 0,
        measure: Measure = SQUARED,
        likelihood: bool = False,
        examples: tuple[int, int] | None = None,
        distilled: Distilled | None = None,
        clusters: Clusters | None = None,
    ) -> None:
        super().__init__()
        self.examples = nn.Buffer(torch.full(examples, UNTOLD)) if examples is not None else None
        self.distilled, self.clusters = distilled, clusters
        self.distillation_target: DistillationTarget | None = None  # given by a training, and no part of what is kept
        self.denoiser, self.codec, self.shape, self.model_shape = denoiser, codec, shape, codec.model_shape(shape)
        self.weight, self.times, self.label_dropout, self.augment = weight, times, label_dropout, augment
        self.measure, self.likelihood = measure, likelihood
        self.label_count = labels

    @property
    def kind(self) -> Kind:
        """What one datum is."""
        return kind_of(self.shape)

    @property
    def conditional(self) -> bool:
        """Whether it was trained with conditions."""
        return bool(self.label_count) or self.examples is not None

    def example(self, share: Tensor) -> Tensor:
        """Return rows of conditions of the training data, (B, R), by where they stand among those kept, (B,) in [0, 1)."""
        assert self.examples is not None
        rows = self.examples[(share * len(self.examples)).long().to(self.device)]
        return torch.where(rows == UNTOLD, torch.nan, rows)

    @property
    def profile(self) -> SamplingProfile:
        """What the network makes, by which the usual sampler is chosen."""
        return profile_of(self.distilled, self.lossy)

    @property
    def lossy(self) -> bool:
        """Whether the codec gives data back only about as they were."""
        return self.codec.lossy

    @property
    def units(self) -> Codec:
        """The units of pictures."""
        return self.codec.units

    def picture(self, z: Tensor) -> Tensor:
        """Return samples in these units, by the decoder of codes where they are ones."""
        return self.codec.picture(z)

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the loss, or the bound, on data that were not trained on; see `reverie.families.diffusion.noise_levels`."""
        if self.distillation_target is not None:
            return {"held_out": self.distillation_target.held_out(self.denoiser, data, self.codec.encode, seed)}
        return held_out_metrics(self, data, seed)

    def final_metrics(self, train: Dataset, seed: int) -> dict[str, Any]:
        """Return the least loss that any model can have on the training data, in four ranges of t."""
        return {} if self.distilled else {"optimum_levels": optimum_levels(self, train, seed)}

    def operations(self) -> int:
        """Return the floating-point operations of one evaluation of the network for one datum."""
        with FlopCounterMode(display=False) as counter:
            self.denoiser(torch.zeros(1, *self.model_shape, device=self.device), 0.5)
        return int(counter.get_total_flops())

    def facts(self) -> dict[str, Any]:
        """Return the size of the network, the operations of an evaluation, and how the schedule ends."""
        alpha, sigma = self.denoiser.schedule(1.0)
        parameters, coded = sum(p.numel() for p in self.denoiser.parameters()), self.codec.summary()
        ends = {"alpha": alpha, "sigma": sigma}
        found = {"parameters": parameters, "operations": self.operations(), "schedule_end": ends}
        found |= {"clusters": len(self.clusters)} if self.clusters is not None else {}
        return {**found, "codec": coded} if coded else found

    def summary_line(self) -> str:
        """Say how large the network is."""
        name = type(self.denoiser.net).__name__.lower().removeprefix("conditional")
        parameters = sum(p.numel() for p in self.denoiser.parameters())
        return f"network: {name}, {parameters:,} parameters, {self.operations() / 1e6:,.1f} million operations"

    def warn(self) -> None:
        """Warn of a schedule that leaves a signal at t = 1."""
        self.denoiser.schedule.warn_if_signal_remains()

    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Draw as the options ask; see `reverie.families.diffusion.sampling`."""
        options = dict(inputs.options)
        if options.get("precision") is None and not any(options.get(key) is not None for key in STEERING):
            options["precision"] = self.default_precision()
        sampler, grid = build_sampling(self.shape, self.denoiser.schedule, options, self.profile)
        times: Tensor | None = options.get("times")
        tell = self._teller(inputs)
        guide = build_guidance(
            self.kind, self.conditional, options, inputs.weights, inputs.classifier, lambda: tell(self._weak(inputs))
        )
        unsure = self._unsure(sampler, inputs)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        return self.sample(
            inputs.seeds, cond, sampler, grid if times is None else times,
            lambda _: self._clip(guide(unsure(tell(self.denoiser)))),
            options.get("steer"), options.get("origin"),
        )  # fmt: skip

    @property
    def clips(self) -> bool:
        """Whether what it estimates is cut off at -1 and 1, after guidance."""
        return self.distilled is not None and self.distilled.clipped

    def _clip(self, denoiser: Denoiser) -> Denoiser:
        return Clip(denoiser) if self.clips else denoiser

    def _teller(self, inputs: SamplingInputs) -> Callable[[NetDenoiser], Denoiser]:
        """Return what tells a network the clusters of what it draws; nothing where something else decides what that is."""
        composed = inputs.cond is not None and inputs.cond.ndim > 1
        if composed or any(inputs.options.get(key) is not None for key in ("steer", "origin")):
            return lambda denoiser: denoiser
        told = self.sample_clusters(inputs.seeds, inputs.cond)
        return lambda denoiser: denoiser if told is None else WithClusters(denoiser, told)

    def sample_clusters(self, seeds: Tensor, cond: Tensor | None) -> Tensor | None:
        """Return what the network is told of data to draw, (B, K), or None.  seeds: (B,); cond: (B,) labels or None."""
        if self.clusters is None:
            return None
        return self.clusters.one_hot(self.clusters.sample(seeds, cond), self.augmentation_width)

    @property
    def augmentation_width(self) -> int:
        """How many numbers the network is told of changes of the data."""
        return 0 if self.augment is None else len(self.augment.conditioned)

    def joint_labels(self, x: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return label and cluster of each datum as one number, (B,), or the label alone.  x: (B, ...) in user units."""
        if self.clusters is None:
            return labels
        return self.clusters.assign(x) if labels is None else labels * len(self.clusters) + self.clusters.assign(x)

    def conditioning_of(self, x: Tensor, changes: Tensor | None = None, untold: Tensor | None = None) -> Tensor | None:
        """Return what the network is told of data: what was done to them, and their clusters; None where it is nothing.

        x: (B, ...) in user units, as they were; changes: (B, K) or None; untold: (B,), those whose clusters are hidden.
        """
        if self.clusters is None:
            return changes
        told = self.clusters.one_hot(self.clusters.assign(x), self.augmentation_width)
        if untold is not None:
            told = told * ~untold.to(told.device)[:, None]
        return told if changes is None else torch.cat([changes.to(told), told[:, changes.shape[1] :]], 1)

    def default_precision(self) -> Precision:
        """Return what it draws in where nothing is said: bfloat16 was measured for pictures and their codes on processors."""
        measured = self.device.type == "cpu" and not self.likelihood
        return default_precision(self.model_shape, self.device) if measured else "fp32"

    def _unsure(self, sampler: Sampler, inputs: SamplingInputs) -> Steer:
        """Return what makes the denoiser tell the variance that a sampler asks for; refuse one that is not known."""
        variance = sampler.variance if isinstance(sampler, DDPM) else "posterior"
        if variance == "learned" and not self.denoiser.has_variance:
            raise UserError(
                "this model was trained without variances of its own; sample with ddpm:variance=optimal, which needs none, or"
                " train with --variance learned"
            )
        if variance != "optimal":
            return lambda denoiser: denoiser
        if inputs.mean_error is None:
            raise UserError("the optimal variance is measured on training data, which only a run has")
        error = inputs.mean_error()
        return lambda denoiser: WithVariance(denoiser, error)

    def _weak(self, inputs: SamplingInputs) -> NetDenoiser:
        if isinstance(self.denoiser.schedule, Learned):
            raise UserError(
                "autoguidance compares a run with its early state at the same noise, and this run has learned another schedule"
                " since; leave --autoguidance out"
            )
        weak = inputs.weak() if inputs.weak is not None else None
        if not isinstance(weak, Diffusion):
            raise UserError("autoguidance needs an earlier state of the model, which only a run has")
        return weak.denoiser

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the training loss of each datum, (B,); changes, times, noise and hidden labels are functions of the seed.

        x: (B, ...) in user units; cond: (B,), (B, R) or None.
        """
        if self.distillation_target is not None:
            return self.distillation_target.loss(self.denoiser, self.codec.encode(x), cond, seed)
        changed, changes = (x, None) if self.augment is None else self.augment(x, mix_seed(seed, 2))
        z = self.codec.encode(changed)
        random = torch.Generator().manual_seed(seed)
        t = draw_times(self.times, self.denoiser.schedule, len(x), random, build_weight(self.weight).steps)
        untold = torch.zeros(len(x), dtype=torch.bool)
        if cond is not None and self.label_dropout:
            untold = torch.rand(len(x), generator=random) < self.label_dropout
            cond = drop_conditions(cond, untold)
        if self.clusters is not None:  # hidden with the label, and from others as well
            untold |= torch.rand(len(x), generator=torch.Generator().manual_seed(mix_seed(seed, 4))) < CLUSTERS_HIDDEN
        other = torch.Generator(z.device).manual_seed(mix_seed(seed, 1))  # a stream of its own, independent of the times
        eps = torch.randn(z.shape, generator=other, device=z.device, dtype=z.dtype)
        with seeded_dropout(self.denoiser.net, mix_seed(seed, 3)):
            return self.loss_at(Pair(z, eps), t, cond, self.conditioning_of(x, changes, untold))

    def loss_at(self, truth: Pair, t: Tensor, cond: Tensor | None, told: Tensor | None = None) -> Tensor:
        """Return the loss at given times for given noise, and for what the network is told was done to the data: (B,).

        A learned schedule gets the gradient of the bound, by its ends alone in continuous time, where its course gets that of
        the variance, and by all of it where the bound is that of some steps.
        """
        d, schedule = self.denoiser, self.denoiser.schedule
        steps = build_weight(self.weight).steps
        if isinstance(schedule, Learned):
            schedule.minimize_variance(self.training and not steps)
        denoiser = d if told is None else WithConditioning(d, told)
        guess = denoiser(truth.mix(*schedule(t)), t, cond)
        lost = loss_of(guess, schedule, truth, t, d.target, self.weight, d.sigma_data, self.measure)
        if isinstance(schedule, Learned):
            schedule.record_loss(lost)
            schedule.minimize_variance(False)
            lost = lost + end_costs(schedule, truth, self.codec.levels)
        if self.learns_variance:
            lost = lost + VARIANCE_SHARE * variance_loss(guess, schedule, truth, t, steps or VARIANCE_STEPS)
        return lost

    @property
    def learns_variance(self) -> bool:
        """Whether the loss trains variances; a denoiser of levels has them of itself."""
        return self.denoiser.has_variance and not isinstance(self.denoiser, LatticeDenoiser)

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Find clusters of the data, keep examples of their conditions, and give their histograms to a denoiser of levels."""
        if self.examples is not None and data.conditions is not None:
            rows = data.conditions.batch(evenly_spaced_indices(len(data), len(self.examples)))
            self.examples.copy_(rows.nan_to_num(UNTOLD))
        if self.clusters is not None:
            self.clusters.fit(data, deadline)
        if isinstance(self.denoiser, LatticeDenoiser):
            most = len(data) if isinstance(data.x, Tensor) else HISTOGRAMS_OF
            self.denoiser.initialize(self.codec.encode(data.batch(evenly_spaced_indices(len(data), most))[0]).to(self.device))

    def sample(
        self,
        seeds: Tensor,
        cond: Tensor | None,
        sampler: Sampler,
        grid: Tensor,
        guidance: Steer | None = None,
        steer: Steer | None = None,
        origin: Tensor | None = None,
    ) -> Iterator[Frame]:
        """Draw one datum per seed and yield the frames in model units; decode the last frame's x0.

        seeds: (B,) int64; cond: what the guided denoiser takes, or None; grid: (n,) descending; guidance: wraps the model's
        denoiser; steer: wraps the guided one; origin: (B or 1, ...) data that are noised to the grid's first time, to start
        from instead of noise alone.
        """
        noise = Noise(seeds)
        denoise: Denoiser = WithCondition(self.denoiser if guidance is None else guidance(self.denoiser), cond)
        if steer is not None:
            denoise = steer(denoise)
        eps = noise.like(torch.empty(len(seeds), *self.model_shape, device=self.device))
        t = float(grid[0])
        x = start(denoise.schedule, t, eps) if origin is None else Pair(origin, eps).mix(*denoise.schedule(t))
        yield from trajectory(denoise, sampler, x, grid, noise)
