"""The checks of the doctor: each looks for one problem in the recent history of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reverie.data.kind import KINDS
from reverie.diffusion.learned import Learned
from reverie.families.diffusion.latent_codec import LatentCodec
from reverie.families.diffusion.model import Diffusion
from reverie.runs.finding import Finding
from reverie.training.diagnosis import ENOUGH, MIN_DATA, SETTLED, Check, Diagnosis, Row, gain, held_out_decrease, metric_name

# Improvements are shares of a loss, or differences in the unit of a likelihood; see `gain`.
# Minimum improvement of the held-out metric, and minimum relative change of the weights, of a network that learns.
STUCK, MOVED = 0.01, 1e-3
BLANK, COLLAPSED, SATURATED = 0.1, 0.05, 0.3
NOISY = 0.15  # variance of white noise in previews, relative to that of the data, from which they look like noise
MISSED = 0.15  # share of the noise that a linear filter removes and the network does not
FALLING = 0.03  # improvement over the last half of the steps from which longer training is worth it
LAG = 0.1  # tolerated gap between averaged and raw weights, relative to the total improvement
UNCERTAIN = 0.02  # difference of two held-out metrics within their error
RISE = 0.05  # tolerated rise of a held-out metric above its minimum
COPY = 0.5  # distance of samples to training data, relative to that of held-out data, below which they are copies
FLAT = 0.005  # improvement of the held-out metric below which it is flat
PATIENCE = 4  # checks without improvement after which a metric is flat
LEARNED = 0.9  # ratio of the training loss to its first value below which the network learned something
RANK = (0.6, 1.6)  # missed share of the noise, relative to the share that a narrow first layer must miss
NOTHING = 0.05  # KL of a datum, in nats, up to which the latent carries no information
SLOW = 0.25  # improvement over the last half of the steps up to which a narrow network has converged
LOST = 0.1  # tolerated share of the variance of images that the autoencoder loses
NOISE_NAMES = ("the least noise", "little noise", "much noise", "the most noise")


def data_range(p: Diagnosis) -> Finding | None:
    """Check that images lie in [0, 1] and that the codec is invertible."""
    low, high = float(p.data.min()), float(p.data.max())
    if p.kind == "images" and (low < -1e-3 or high > 1 + 1e-3):
        what = f"image values range from {low:.3g} to {high:.3g}"
        return Finding("data_range", what, 0, "a wrong scale, as values must lie between 0 and 1", "divide bytes by 255")
    if p.model.lossy:
        return None
    error = float((p.model.decode(p.model.encode(p.data.to(p.model.device))).cpu() - p.data).abs().max())
    if error > 1e-3 * max(1.0, abs(low), abs(high)):
        what = f"encoding and decoding changes the data by up to {error:.3g}"
        cause = "a codec that is not invertible"
        return Finding("data_range", what, 0, cause, "fix the codec so that decode(encode(x)) equals x")
    return None


def constant_data(p: Diagnosis) -> Finding | None:
    """Check for constant channels or coordinates, and for identical data."""
    if float(p.data.std(0).max()) < 1e-6:
        cause = "a single datum that is repeated"
        return Finding("constant_data", "all data are identical", 0, cause, "use data that differ")
    flat = p.data.transpose(0, 1).flatten(1)  # (channels, everything else)
    if dead := [k for k, deviation in enumerate(flat.std(1).tolist()) if deviation < 1e-6]:
        kind = "channel" if p.kind == "images" else "coordinate"
        cause = "a broken export, or an empty alpha channel"
        advice = "remove it; for images use --channels"
        change: Mapping[str, str | None] = {"channels": "3"} if p.kind == "images" and dead == [3] else {}
        return Finding("constant_data", f"{kind} {dead[0]} of the data is constant", 0, cause, advice, change)
    return None


def signal_left(p: Diagnosis) -> Finding | None:
    """Check that the noise schedule ends in noise (arXiv:2305.08891)."""
    schedule = p.network.schedule
    if schedule is None or (left := schedule.remaining_signal()) <= schedule.signal_limit:
        return None
    what = f"the noise schedule ends at a signal-to-noise ratio of {left:.2g}"
    if isinstance(schedule, Learned):
        cause = "a final log-SNR that is too high, and too few steps to learn it"
        return Finding("signal_left", what, 0, cause, schedule.noisier, {"schedule": None})
    cause = "too few steps of the schedule, or a small beta_end or sigma_max"
    return Finding("signal_left", what, 0, cause, "train with --schedule cosine or rectified", {"schedule": "cosine"})


def few_data(p: Diagnosis) -> Finding | None:
    """Check for training sets that are too small to generalize from."""
    if p.count >= MIN_DATA:
        return None
    kind = KINDS[p.kind].partition(" ")[2] + "s" * (p.count != 1 and p.kind != "series")
    what = f"the training set has only {p.count} {kind}, so the model can only memorize"
    return Finding("few_data", what, 0, "", f"use at least {MIN_DATA}, preferably hundreds")


def not_learning(p: Diagnosis) -> Finding | None:
    """Check that the held-out metric improves on that of the untrained network."""
    rows = p.checked()
    late = [row for row in rows if p.fraction_at(row) >= 0.1]
    if not late or late[0] is rows[0] or not p.movement or p.now["i"] < ENOUGH:
        return None
    first, best = float(rows[0]["held_out"]), min(float(row["held_out"]) for row in late)
    if gain(first, best, p.unit) > STUCK:
        return None
    what = f"the {metric_name(p.unit)} is {float(late[-1]['held_out']):.4g}, and was {first:.4g} before training"
    rate, chosen = max(float(row.get("learning_rate", 0)) for row in p.rows), "learning_rate" in p.requested
    losses = [sum(row["train_levels"]) for row in (rows[0], rows[-1]) if row.get("train_levels")]
    change: Mapping[str, str | None] = {"learning_rate": None}
    if max(p.movement.values()) < MOVED:
        cause, advice = "a learning rate that is too low to change the weights", f"try --learning-rate {100 * rate:.2g}"
        change = change if chosen else {"learning_rate": f"{100 * rate:.2g}"}
    elif p.now["fraction"] < 2 * SETTLED:
        return None  # learning may still start
    elif len(losses) == 2 and losses[1] < LEARNED * losses[0]:
        cause, advice, change = "training data that do not resemble the held-out data", "use more or more uniform data", {}
    elif chosen:
        cause, advice = "a learning rate that is too high", "omit --learning-rate"
    else:
        cause, advice = "data that are pure noise", f"inspect the data, or try --learning-rate {rate / 10:.2g}"
        change = {"learning_rate": f"{rate / 10:.2g}"}
    return Finding("not_learning", what, int(late[0]["i"]), cause, advice, change)


def dead_parameter(p: Diagnosis) -> Finding | None:
    """Check for parameters that no step changed."""
    unchanged = [name for name, moved in p.movement.items() if moved == 0]
    if p.now["fraction"] < 0.05 or p.now["i"] < ENOUGH or not unchanged or max(p.movement.values()) < MOVED:
        return None
    what = f"{len(unchanged)} of {len(p.movement)} parameters never changed, first {unchanged[0]}"
    cause = "a frozen layer, or one that does not affect the output"
    return Finding("dead_parameter", what, 0, cause, "unfreeze or remove it")


def noisy_previews(p: Diagnosis) -> Finding | None:
    """Check for noisy previews, and for a network that removes less noise than a linear filter, once learning stopped."""
    if p.kind != "images" or p.network.schedule is None or not p.has_preview() or p.now["i"] < ENOUGH:
        return None
    if p.unit is not None:  # previews in few steps show little of a model trained for the likelihood
        return None
    assert p.preview is not None and p.truth is not None
    noise, rows = p.preview.noise(p.truth), p.checked()
    linear, entry = p.network.linear, p.network.entry
    # On training data, as overfitting has its own check.
    missed = linear.missed(rows[-1]["train_levels"]) if linear is not None else 0.0
    narrow = entry is not None and 0 < RANK[0] * entry.lost < missed < RANK[1] * entry.lost
    fall = held_out_decrease(rows)
    if max(noise / NOISY, missed / MISSED) < 1 or fall is None or fall[1] > (SLOW if narrow else FALLING):
        return None  # the verdict covers models that still improve
    what = f"the previews are noise with {noise:.0%} of the data's variance"
    if noise < NOISY:
        what = f"the network misses {missed:.0%} of the noise that a linear filter finds"
    if narrow and entry is not None:
        cause = f"a network too narrow for its input: its first layer maps {entry.folded} values of each position to"
        cause += f" {entry.width} channels, which loses {entry.lost:.0%} of the noise (missed: {missed:.0%})"
        suggested = p.network.sizes.unfolded
        advice = f"use a network whose first layer has at least {entry.folded} channels"
    else:
        cause, suggested = "a network too small for these images", p.network.sizes.larger
        advice = "train on smaller images with --size"
    advice, change = (f"train with --network {suggested}", {"network": suggested}) if suggested else (advice, {})
    return Finding("noisy_previews", what, int(p.now["i"]), cause, advice, change)


def empty_previews(p: Diagnosis) -> Finding | None:
    """Check for previews that are of one color, saturated or identical."""
    if not p.has_preview():
        return None
    assert p.preview is not None and p.truth is not None
    stats, truth, i = p.preview, p.truth, int(p.now["i"])
    rate = f"{max(float(row.get('learning_rate', 0)) for row in p.rows) / 10:.2g}"
    advice, lower = f"train longer, or with --learning-rate {rate}", {"learning_rate": rate}
    if p.kind == "images" and stats.contrast < BLANK * truth.contrast:
        name = "black" if stats.mean < -0.8 else "white" if stats.mean > 0.8 else "of one color"
        cause = "weights that output the same value everywhere"
        return Finding("empty_previews", f"the previews are {name}", i, cause, advice, lower)
    if stats.outside > SATURATED:
        what = f"{stats.outside:.0%} of the values of previews lie far outside the range of the data"
        cause = "an error that grows with each sampling step"
        if p.requested.get("target", "flow") in ("v", "flow"):
            return Finding("empty_previews", what, i, cause, advice, lower)
        return Finding("empty_previews", what, i, cause, "train with --target flow", {"target": "flow"})
    if stats.variance < COLLAPSED * truth.variance:
        what = f"the previews are nearly identical, with {stats.variance / truth.variance:.1%} of the data's variance"
        return Finding("empty_previews", what, i, "mode collapse", advice, lower)
    return None


def posterior_collapse(p: Diagnosis) -> Finding | None:
    """Check for posterior collapse (arXiv:1511.06349): latents without information about the data."""
    rows = [row for row in p.checked() if p.fraction_at(row) >= SETTLED and "kl" in row]
    if len(rows) < 2 or any(row["kl"] > NOTHING for row in rows[-2:]):
        return None
    what = f"the latent holds {rows[-1]['kl']:.2g} nats of information on a datum, so the decoder ignores it"
    if float(p.requested.get("beta", 1.0)) > 1:
        return Finding("posterior_collapse", what, int(rows[-2]["i"]), "a large weight of the KL term", "omit --beta",
                       {"beta": None})  # fmt: skip
    cause = "a KL term that outweighs the reconstruction early in training"
    return Finding("posterior_collapse", what, int(rows[-2]["i"]), cause, "train with --free-bits 0.1", {"free_bits": "0.1"})


def poor_codec(p: Diagnosis) -> Finding | None:
    """Check the reconstruction error of the autoencoder, which bounds the quality of samples."""
    if not isinstance(p.model, Diffusion) or not isinstance(p.model.codec, LatentCodec) or float(p.model.codec.lost) <= LOST:
        return None
    psnr = p.model.codec.summary()["psnr"]
    what = f"the autoencoder loses {float(p.model.codec.lost):.0%} of the variance of images (PSNR {psnr:.1f} dB)"
    cause = "an autoencoder that was trained too briefly, or images with much fine detail"
    return Finding("poor_codec", what, 0, cause, "train longer, or with --no-latent at a smaller --size", {"length": "3"})


def lagging_average(p: Diagnosis) -> Finding | None:
    """Check that the EMA weights are no worse than the raw weights (arXiv:2312.02696)."""
    rows = [row for row in p.checked() if p.fraction_at(row) >= SETTLED and "raw_held_out" in row]
    if len(rows) < 2:
        return None
    first = float(p.checked()[0]["held_out"])
    if any(row["held_out"] - row["raw_held_out"] <= LAG * abs(first - row["raw_held_out"]) for row in rows[-2:]):
        return None
    if any(-gain(row["raw_held_out"], row["held_out"], p.unit) <= UNCERTAIN for row in rows[-2:]):
        return None
    what = f"the EMA weights are worse than the raw weights: {metric_name(p.unit)} {rows[-1]['held_out']:.3g} against"
    what += f" {rows[-1]['raw_held_out']:.3g}"
    cause = "an average over too many steps"
    advice = "omit --ema-share" if "ema_share" in p.requested else "train longer"
    return Finding("lagging_average", what, int(rows[-2]["i"]), cause, advice, {"ema_share": None})


def overfitting(p: Diagnosis) -> Finding | None:
    """Check for a held-out metric that rises, at some noise level, while the training metric falls."""
    by_level = not p.unit and any(row.get("train_levels") for row in p.checked())
    rows = [row for row in p.checked() if (row.get("train_levels") if by_level else "train_loss" in row)]
    if len(rows) < 4:
        return None
    curves = {"the": ([row["held_out"] for row in rows], [row["train_loss"] for row in rows])} if not by_level else {
        f"at {level} the": ([row["held_out_levels"][k] for row in rows], [row["train_levels"][k] for row in rows])
        for k, level in enumerate(NOISE_NAMES)
    }  # fmt: skip
    for prefix, (held, train) in curves.items():
        best = min(range(len(held)), key=held.__getitem__)
        if best < len(held) - 2 and train[-1] < train[best] and gain(held[best], min(held[-2:]), p.unit) < -RISE:
            what = f"{prefix} {metric_name(p.unit)} rose from {held[best]:.3g} to {held[-1]:.3g}, while the training metric"
            what += " fell"
            cause = "too few data for a training of this length"
            advice, change = _advice_against_overfitting(p, rows[best]["i"] / rows[-1]["i"])
            return Finding("overfitting", what, int(rows[best]["i"]), cause, advice, change)
    return None


def copies(p: Diagnosis) -> Finding | None:
    """Check for memorization (arXiv:2212.03860): samples that lie closer to training data than held-out data do.

    Noisy previews are exempt: noise around the mean also lies close to training data that are far apart.
    """
    if not p.has_preview() or p.now["i"] < ENOUGH:
        return None
    assert p.preview is not None and p.truth is not None
    distance, held_out = p.preview.nearest, p.truth.nearest
    if p.kind == "images" and p.preview.noise(p.truth) > NOISY:
        return None
    if distance >= COPY * held_out or held_out == 0:
        return None
    what = f"the distance of samples to the nearest training datum is {distance / held_out:.2f} times that of held-out data"
    cause = "memorization of the training data"
    return Finding("copies", what, int(p.now["i"]), cause, *_advice_against_overfitting(p, 0.5))


def _advice_against_overfitting(p: Diagnosis, share: float) -> tuple[str, Mapping[str, str | None]]:
    """Return the advice against overfitting, and the change of settings.  share: new length, relative to the present one."""
    if p.requested.get("augment") == "none":
        return "use more data, or omit --augment none", {"augment": None}
    share = max(0.05, share)
    shorter = f"train for {share:.0%} of the time"
    if p.network.sizes.smaller is None:
        return f"use more data, or {shorter}", {"length": f"{share:.2g}"}
    return f"use more data, {shorter}, or train with --network {p.network.sizes.smaller}", {"network": p.network.sizes.smaller}


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        data_range, constant_data, few_data, signal_left, not_learning, dead_parameter, noisy_previews, empty_previews,
        posterior_collapse, poor_codec, lagging_average, overfitting, copies,
    )
}  # fmt: skip


# Findings that imply others; the implied ones are not reported.
EXPLAINS = {"few_data": ("not_learning", "lagging_average", "overfitting", "copies"), "constant_data": ("few_data",)}


def examine(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Run all checks and return their findings, without those that another finding implies."""
    findings = {name: finding for name, check in CHECKS.items() if (finding := check(diagnosis)) is not None}
    implied = {name for cause, names in EXPLAINS.items() if cause in findings for name in names}
    return tuple(finding for name, finding in findings.items() if name not in implied)


def has_stopped_improving(rows: Sequence[Row], key: str = "held_out", least: float = FLAT) -> bool:
    """Return whether the best of the last PATIENCE checks improves on the earlier best by less than `least`."""
    values = [float(row[key]) for row in rows if key in row]
    unit = next((row["unit"] for row in reversed(rows) if "unit" in row), None) if key == "held_out" else None
    return len(values) > 2 * PATIENCE and gain(min(values[:-PATIENCE]), min(values[-PATIENCE:]), unit) < least
