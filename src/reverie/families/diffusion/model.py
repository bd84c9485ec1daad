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

MAX_HISTOGRAM_DATA = 20_000  # data for the initial histograms of a level denoiser if data are not in memory
# Weight of the bound in the loss of networks with learned variances.  arXiv:2102.09672 uses 0.001 for 10^6 steps; in a few
# hundred steps on digits8, 0.03 improved the bound by 0.05 bits/dim at 10 steps, and did not change the held-out loss.
VARIANCE_SHARE = 0.03
CLUSTER_DROPOUT = 0.1  # probability of training without the cluster, for editing and restoration
MISSING = -1e9  # replaces NaN, a missing condition, in stored condition vectors, which must be finite
VARIANCE_STEPS = 20  # steps of the chain in this bound if training is in continuous time


class Diffusion(DiffusionLikelihood):
    """A denoiser with its codec and training objective.

    shape: of one datum in user units; model_shape: in model units.  label_dropout: probability of training without the label,
    for classifier-free guidance.  augment: of training data.  labels: number of labels.  measure: the error measure.
    likelihood: whether the bound is trained, and reported as the held-out metric.  examples: number and width of stored
    condition vectors, used where no condition is requested.  distilled: record of a student; distillation_target: its
    objective in training.  clusters: of images, on which the network is conditioned besides labels.
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
        self.examples = nn.Buffer(torch.full(examples, MISSING)) if examples is not None else None
        self.distilled, self.clusters = distilled, clusters
        self.distillation_target: DistillationTarget | None = None  # set by distillation; not stored
        self.denoiser, self.codec, self.shape, self.model_shape = denoiser, codec, shape, codec.model_shape(shape)
        self.weight, self.times, self.label_dropout, self.augment = weight, times, label_dropout, augment
        self.measure, self.likelihood = measure, likelihood
        self.label_count = labels

    @property
    def kind(self) -> Kind:
        """The kind of data."""
        return kind_of(self.shape)

    @property
    def conditional(self) -> bool:
        """Whether the model was trained with conditions."""
        return bool(self.label_count) or self.examples is not None

    def example(self, share: Tensor) -> Tensor:
        """Return stored condition vectors, (B, R), by their relative position, (B,) in [0, 1)."""
        assert self.examples is not None
        rows = self.examples[(share * len(self.examples)).long().to(self.device)]
        return torch.where(rows == MISSING, torch.nan, rows)

    @property
    def profile(self) -> SamplingProfile:
        """The profile that selects the default sampler."""
        return profile_of(self.distilled, self.lossy)

    @property
    def lossy(self) -> bool:
        """Whether the codec is lossy."""
        return self.codec.lossy

    @property
    def units(self) -> Codec:
        """The units of displayed samples."""
        return self.codec.units

    def picture(self, z: Tensor) -> Tensor:
        """Return samples in the units of `units`; decodes autoencoder codes."""
        return self.codec.picture(z)

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units, by the codec."""
        return self.codec.encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units, by the codec."""
        return self.codec.decode(z)

    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the loss, or the bound, on held-out data; see `reverie.families.diffusion.noise_levels`."""
        if self.distillation_target is not None:
            return {"held_out": self.distillation_target.held_out(self.denoiser, data, self.codec.encode, seed)}
        return held_out_metrics(self, data, seed)

    def final_metrics(self, train: Dataset, seed: int) -> dict[str, Any]:
        """Return the smallest possible loss on the training data, in four ranges of t."""
        return {} if self.distilled else {"optimum_levels": optimum_levels(self, train, seed)}

    def operations(self) -> int:
        """Return the floating-point operations of one evaluation for one datum."""
        with FlopCounterMode(display=False) as counter:
            self.denoiser(torch.zeros(1, *self.model_shape, device=self.device), 0.5)
        return int(counter.get_total_flops())

    def facts(self) -> dict[str, Any]:
        """Return the size of the network, the operations of one evaluation, and the schedule at t = 1."""
        alpha, sigma = self.denoiser.schedule(1.0)
        parameters, codec = sum(p.numel() for p in self.denoiser.parameters()), self.codec.summary()
        ends = {"alpha": alpha, "sigma": sigma}
        facts = {"parameters": parameters, "operations": self.operations(), "schedule_end": ends}
        facts |= {"clusters": len(self.clusters)} if self.clusters is not None else {}
        return {**facts, "codec": codec} if codec else facts

    def summary_line(self) -> str:
        """Return the size of the network as one line."""
        name = type(self.denoiser.net).__name__.lower().removeprefix("conditional")
        parameters = sum(p.numel() for p in self.denoiser.parameters())
        return f"network: {name}, {parameters:,} parameters, {self.operations() / 1e6:,.1f} MFLOP per evaluation"

    def warn(self) -> None:
        """Warn if the schedule leaves a signal at t = 1."""
        self.denoiser.schedule.warn_if_signal_remains()

    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample with the options; see `reverie.families.diffusion.sampling`."""
        options = dict(inputs.options)
        if options.get("precision") is None and not any(options.get(key) is not None for key in STEERING):
            options["precision"] = self.default_precision()
        sampler, grid = build_sampling(self.shape, self.denoiser.schedule, options, self.profile)
        times: Tensor | None = options.get("times")
        conditioned = self._with_clusters(inputs)
        guide = build_guidance(
            self.kind, self.conditional, options, inputs.weights, inputs.classifier, lambda: conditioned(self._weak(inputs))
        )
        with_variance = self._variance_wrapper(sampler, inputs)
        cond = inputs.cond.to(self.device) if inputs.cond is not None else None
        return self.sample(
            inputs.seeds, cond, sampler, grid if times is None else times,
            lambda _: self._clip(guide(with_variance(conditioned(self.denoiser)))),
            options.get("steer"), options.get("origin"),
        )  # fmt: skip

    @property
    def clips(self) -> bool:
        """Whether estimates are clamped to [-1, 1], after guidance."""
        return self.distilled is not None and self.distilled.clipped

    def _clip(self, denoiser: Denoiser) -> Denoiser:
        return Clip(denoiser) if self.clips else denoiser

    def _with_clusters(self, inputs: SamplingInputs) -> Callable[[NetDenoiser], Denoiser]:
        """Return a wrapper that conditions a network on sampled clusters; the identity if steering determines the content."""
        composed = inputs.cond is not None and inputs.cond.ndim > 1
        if composed or any(inputs.options.get(key) is not None for key in ("steer", "origin")):
            return lambda denoiser: denoiser
        clusters = self.sample_clusters(inputs.seeds, inputs.cond)
        return lambda denoiser: denoiser if clusters is None else WithClusters(denoiser, clusters)

    def sample_clusters(self, seeds: Tensor, cond: Tensor | None) -> Tensor | None:
        """Return the conditioning on sampled clusters, (B, K), or None.  seeds: (B,); cond: (B,) labels or None."""
        if self.clusters is None:
            return None
        return self.clusters.one_hot(self.clusters.sample(seeds, cond), self.augmentation_width)

    @property
    def augmentation_width(self) -> int:
        """The number of entries of the network's conditioning that describe augmentations."""
        return 0 if self.augment is None else len(self.augment.conditioned)

    def joint_labels(self, x: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return label and cluster of each datum as one integer, (B,), or only the label.  x: (B, ...) in user units."""
        if self.clusters is None:
            return labels
        return self.clusters.assign(x) if labels is None else labels * len(self.clusters) + self.clusters.assign(x)

    def conditioning_of(self, x: Tensor, changes: Tensor | None = None, dropped: Tensor | None = None) -> Tensor | None:
        """Return the network's conditioning on augmentations and clusters, or None.

        x: (B, ...) in user units, before augmentation; changes: (B, K), of the augmentation, or None; dropped: (B,), data
        without cluster.
        """
        if self.clusters is None:
            return changes
        conditioning = self.clusters.one_hot(self.clusters.assign(x), self.augmentation_width)
        if dropped is not None:
            conditioning = conditioning * ~dropped.to(conditioning.device)[:, None]
        if changes is None:
            return conditioning
        return torch.cat([changes.to(conditioning), conditioning[:, changes.shape[1] :]], 1)

    def default_precision(self) -> Precision:
        """Return the default precision of sampling: bfloat16 was measured for images and codes on CPUs."""
        measured = self.device.type == "cpu" and not self.likelihood
        return default_precision(self.model_shape, self.device) if measured else "fp32"

    def _variance_wrapper(self, sampler: Sampler, inputs: SamplingInputs) -> Steer:
        """Return a wrapper that adds the variance that a sampler needs; raise a UserError if it is unknown."""
        variance = sampler.variance if isinstance(sampler, DDPM) else "posterior"
        if variance == "learned" and not self.denoiser.has_variance:
            raise UserError(
                "this model has no learned variances; sample with ddpm:variance=optimal, or train with --variance learned"
            )
        if variance != "optimal":
            return lambda denoiser: denoiser
        if inputs.mean_error is None:
            raise UserError("the optimal variance needs estimates on training data, which only a run has; sample from a run")
        error = inputs.mean_error()
        return lambda denoiser: WithVariance(denoiser, error)

    def _weak(self, inputs: SamplingInputs) -> NetDenoiser:
        if isinstance(self.denoiser.schedule, Learned):
            raise UserError(
                "autoguidance evaluates an early checkpoint at the same noise levels, and the schedule of this run has been"
                " learned since; leave --autoguidance out"
            )
        weak = inputs.weak() if inputs.weak is not None else None
        if not isinstance(weak, Diffusion):
            raise UserError("autoguidance needs an early checkpoint, which only a run has; sample from a run")
        return weak.denoiser

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the training loss of each datum, (B,); augmentation, times, noise and dropout are functions of the seed.

        x: (B, ...) in user units; cond: (B,), (B, R) or None.
        """
        if self.distillation_target is not None:
            return self.distillation_target.loss(self.denoiser, self.codec.encode(x), cond, seed)
        augmented, changes = (x, None) if self.augment is None else self.augment(x, mix_seed(seed, 2))
        z = self.codec.encode(augmented)
        random = torch.Generator().manual_seed(seed)
        t = draw_times(self.times, self.denoiser.schedule, len(x), random, build_weight(self.weight).steps)
        dropped = torch.zeros(len(x), dtype=torch.bool)
        if cond is not None and self.label_dropout:
            dropped = torch.rand(len(x), generator=random) < self.label_dropout
            cond = drop_conditions(cond, dropped)
        if self.clusters is not None:  # dropped with the label, and for other data as well
            dropped |= torch.rand(len(x), generator=torch.Generator().manual_seed(mix_seed(seed, 4))) < CLUSTER_DROPOUT
        noise = torch.Generator(z.device).manual_seed(mix_seed(seed, 1))  # a stream independent of the times
        eps = torch.randn(z.shape, generator=noise, device=z.device, dtype=z.dtype)
        with seeded_dropout(self.denoiser.net, mix_seed(seed, 3)):
            return self.loss_at(Pair(z, eps), t, cond, self.conditioning_of(x, changes, dropped))

    def loss_at(self, truth: Pair, t: Tensor, cond: Tensor | None, conditioning: Tensor | None = None) -> Tensor:
        """Return the loss for given times, noise and conditioning: (B,).

        A learned schedule is trained by the bound.  In continuous time the bound trains its ends, and the variance of the loss
        its shape in between; for a chain of finitely many steps the bound trains both.
        """
        d, schedule = self.denoiser, self.denoiser.schedule
        steps = build_weight(self.weight).steps
        if isinstance(schedule, Learned):
            schedule.minimize_variance(self.training and not steps)
        denoiser = d if conditioning is None else WithConditioning(d, conditioning)
        estimate = denoiser(truth.mix(*schedule(t)), t, cond)
        loss = loss_of(estimate, schedule, truth, t, d.target, self.weight, d.sigma_data, self.measure)
        if isinstance(schedule, Learned):
            schedule.record_loss(loss)
            schedule.minimize_variance(False)
            loss = loss + end_costs(schedule, truth, self.codec.levels)
        if self.learns_variance:
            loss = loss + VARIANCE_SHARE * variance_loss(estimate, schedule, truth, t, steps or VARIANCE_STEPS)
        return loss

    @property
    def learns_variance(self) -> bool:
        """Whether the loss trains variances; those of a level denoiser need no training."""
        return self.denoiser.has_variance and not isinstance(self.denoiser, LatticeDenoiser)

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Fit clusters, store condition vectors, and initialize a level denoiser with histograms of the data."""
        if self.examples is not None and data.conditions is not None:
            vectors = data.conditions.batch(evenly_spaced_indices(len(data), len(self.examples)))
            self.examples.copy_(vectors.nan_to_num(MISSING))
        if self.clusters is not None:
            self.clusters.fit(data, deadline)
        if isinstance(self.denoiser, LatticeDenoiser):
            count = len(data) if isinstance(data.x, Tensor) else MAX_HISTOGRAM_DATA
            self.denoiser.initialize(self.codec.encode(data.batch(evenly_spaced_indices(len(data), count))[0]).to(self.device))

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
        """Sample one datum per seed and yield the frames in model units; decode the last frame's x0.

        seeds: (B,) int64; cond: condition of the guided denoiser, or None; grid: (n,), descending times; guidance: wraps the
        model's denoiser; steer: wraps the guided one; origin: (B or 1, ...) data to start from, noised to the grid's first
        time, instead of pure noise.
        """
        noise = Noise(seeds)
        denoise: Denoiser = WithCondition(self.denoiser if guidance is None else guidance(self.denoiser), cond)
        if steer is not None:
            denoise = steer(denoise)
        eps = noise.like(torch.empty(len(seeds), *self.model_shape, device=self.device))
        t = float(grid[0])
        x = start(denoise.schedule, t, eps) if origin is None else Pair(origin, eps).mix(*denoise.schedule(t))
        yield from trajectory(denoise, sampler, x, grid, noise)
