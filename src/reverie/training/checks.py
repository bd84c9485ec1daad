"""The doctor: small checks of a training's recent history, each of which finds one illness or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reverie.data.kind import KINDS
from reverie.diffusion.learned import Learned
from reverie.families.diffusion.latent_codec import LatentCodec
from reverie.families.diffusion.model import Diffusion
from reverie.runs.finding import Finding
from reverie.training.diagnosis import ENOUGH, FEW, SETTLED, Check, Diagnosis, Row, gain, held_out_decrease, metric_name

STUCK, MOVED = 0.01, 1e-3  # gain in the held-out figure, and relative movement of the weights, by which learning shows
BLANK, COLLAPSED, SATURATED = 0.1, 0.05, 0.3
NOISY = 0.15  # white noise over the previews, as a share of the data's variance, from which they are noise to an eye
MISSED = 0.15  # the share of the noise lost beyond a linear filter from which a network does not see the noise
FALLING = 0.03  # gain over the last half of the steps from which more time is worth it
LAG = 0.1  # the share of what was learned by which the average may be worse than the raw weights
UNCERTAIN = 0.02  # the difference of two held-out figures, a share of a loss or a cost in its unit, that their error explains
RISE = 0.05  # how far above its lowest value a held-out figure may lie
COPY = 0.5  # samples this much closer to the training data than held-out data are copies
FLAT = 0.005  # gain in the held-out figure below which it has stopped
PATIENCE = 4  # checks without improvement after which it has stopped
LEARNED = 0.9  # of the first loss on training data, below which something of them was learned
RANK = (0.6, 1.6)  # how near the share that a narrow network must miss a share must be to be explained by it
NOTHING = 0.05  # nats of KL of a datum up to which a latent tells nothing of it
SLOW = 0.25  # a fall over the last half of the steps up to which a loss near that share is taken to stand there
LOST = 0.1  # of the variance of images, by an autoencoder whose codes are drawn
NOISE_NAMES = ("the least noise", "little noise", "much noise", "the most noise")


def data_range(p: Diagnosis) -> Finding | None:
    """Images outside [0, 1], or a codec that does not give back what it was given."""
    low, high = float(p.data.min()), float(p.data.max())
    if p.kind == "images" and (low < -1e-3 or high > 1 + 1e-3):
        what = f"the images hold values from {low:.3g} to {high:.3g}"
        return Finding("data_range", what, 0, "a wrong scale: they should lie between 0 and 1", "divide bytes by 255")
    if p.model.lossy:
        return None
    error = float((p.model.decode(p.model.encode(p.data.to(p.model.device))).cpu() - p.data).abs().max())
    if error > 1e-3 * max(1.0, abs(low), abs(high)):
        what = f"normalising the data and undoing it changes them by up to {error:.3g}"
        cause = "a normalisation that is inverted wrongly"
        return Finding("data_range", what, 0, cause, "mend the codec so that decode(encode(x)) is x")
    return None


def constant_data(p: Diagnosis) -> Finding | None:
    """A channel or coordinate that never changes, or data that are all the same."""
    if float(p.data.std(0).max()) < 1e-6:
        cause = "one datum repeated"
        return Finding("constant_data", "all data are the same", 0, cause, "give data that differ, or the model will copy it")
    flat = p.data.transpose(0, 1).flatten(1)  # (channels, everything else)
    if dead := [k for k, deviation in enumerate(flat.std(1).tolist()) if deviation < 1e-6]:
        kind = "channel" if p.kind == "images" else "coordinate"
        cause = "a broken export, or an empty alpha channel"
        advice = "leave it out; for images --channels does it"
        change: Mapping[str, str | None] = {"channels": "3"} if p.kind == "images" and dead == [3] else {}
        return Finding("constant_data", f"{kind} {dead[0]} of the data never changes", 0, cause, advice, change)
    return None


def signal_left(p: Diagnosis) -> Finding | None:
    """A schedule that does not end in noise."""
    schedule = p.network.schedule
    if schedule is None or (left := schedule.remaining_signal()) <= schedule.signal_limit:
        return None
    what = f"the schedule ends with a signal of {left:.2g} times the noise"
    if isinstance(schedule, Learned):
        cause = "a last log-SNR that is too high, and too few steps to learn another"
        return Finding("signal_left", what, 0, cause, schedule.noisier, {"schedule": None})
    cause = "too few steps or too small a beta_end or sigma_max"
    return Finding("signal_left", what, 0, cause, "train with --schedule cosine or rectified", {"schedule": "cosine"})


def few_data(p: Diagnosis) -> Finding | None:
    """So few training data that there is nothing to learn but to give them back."""
    if p.count >= FEW:
        return None
    kind = KINDS[p.kind].partition(" ")[2] + "s" * (p.count != 1 and p.kind != "series")
    what = f"only {p.count} {kind} to train on, too few to learn from: the model can only copy them"
    return Finding("few_data", what, 0, "", f"give at least {FEW}, better some hundreds")


def not_learning(p: Diagnosis) -> Finding | None:
    """A held-out loss that is still that of a network that gives nothing."""
    rows = p.checked()
    late = [row for row in rows if p.share(row) >= 0.1]
    if not late or late[0] is rows[0] or not p.movement or p.now["i"] < ENOUGH:
        return None
    first, best = float(rows[0]["held_out"]), min(float(row["held_out"]) for row in late)
    if gain(first, best, p.unit) > STUCK:
        return None
    what = f"the {metric_name(p.unit)} is {float(late[-1]['held_out']):.4g} and was {first:.4g} before anything was learned"
    rate, chosen = max(float(row.get("learning_rate", 0)) for row in p.rows), "learning_rate" in p.requested
    seen = [sum(row["train_levels"]) for row in (rows[0], rows[-1]) if row.get("train_levels")]
    change: Mapping[str, str | None] = {"learning_rate": None}
    if max(p.movement.values()) < MOVED:
        cause, advice = "a learning rate that is too small to move the weights", f"try --learning-rate {100 * rate:.2g}"
        change = change if chosen else {"learning_rate": f"{100 * rate:.2g}"}
    elif p.now["fraction"] < 2 * SETTLED:
        return None  # it may still begin
    elif len(seen) == 2 and seen[1] < LEARNED * seen[0]:
        cause, advice, change = (
            "training data that tell nothing of the held-out ones",
            "give more data, or data of one kind",
            {},
        )
    elif chosen:
        cause, advice = "a learning rate that is too high", "leave --learning-rate out"
    else:
        cause, advice = "data that hold nothing but noise", f"look at the data, or try --learning-rate {rate / 10:.2g}"
        change = {"learning_rate": f"{rate / 10:.2g}"}
    return Finding("not_learning", what, int(late[0]["i"]), cause, advice, change)


def dead_parameter(p: Diagnosis) -> Finding | None:
    """A parameter that no step has changed."""
    still = [name for name, moved in p.movement.items() if moved == 0]
    if p.now["fraction"] < 0.05 or p.now["i"] < ENOUGH or not still or max(p.movement.values()) < MOVED:
        return None
    what = f"{len(still)} of {len(p.movement)} parameters never changed, first {still[0]}"
    cause = "a frozen layer, or one that the output does not depend on"
    return Finding("dead_parameter", what, 0, cause, "unfreeze it or take it out")


def noisy_previews(p: Diagnosis) -> Finding | None:
    """Previews that are noise, or a network that sees less of the noise than a linear filter, and no longer gets better."""
    if p.kind != "images" or p.network.schedule is None or not p.shows() or p.now["i"] < ENOUGH:
        return None
    if p.unit is not None:  # for the likelihood, of which a few quick steps of sampling show little
        return None
    assert p.preview is not None and p.truth is not None
    noise, rows = p.preview.noise(p.truth), p.checked()
    linear, entry = p.network.linear, p.network.entry
    missed = linear.missed(rows[-1]["train_levels"]) if linear is not None else 0.0  # overfitting is another illness
    narrow = entry is not None and 0 < RANK[0] * entry.lost < missed < RANK[1] * entry.lost
    fall = held_out_decrease(rows)
    if max(noise / NOISY, missed / MISSED) < 1 or fall is None or fall[1] > (SLOW if narrow else FALLING):
        return None  # what still gets better is not ill but young: the verdict says so
    what = f"the previews are noise, whose variance is {noise:.0%} of the data's"
    if noise < NOISY:
        what = f"the network misses {missed:.0%} of the noise that a linear filter would find"
    if narrow and entry is not None:
        cause = f"a network too narrow for its input: its first map has {entry.width} channels for the {entry.folded}"
        cause += f" numbers folded into each place, so {entry.lost:.0%} of the noise cannot pass; {missed:.0%} is missed"
        other, else_do = p.network.sizes.unfolded, f"give a network whose first map has at least {entry.folded} channels"
    else:
        cause, other = "a network too small for these images", p.network.sizes.larger
        else_do = "train on smaller images with --size"
    change = {"network": other} if other is not None else {}
    return Finding(
        "noisy_previews", what, int(p.now["i"]), cause, f"train with --network {other}" if other else else_do, change
    )


def empty_previews(p: Diagnosis) -> Finding | None:
    """Previews that are black, white or one colour, saturated, or all the same."""
    if not p.shows():
        return None
    assert p.preview is not None and p.truth is not None
    look, truth, i = p.preview, p.truth, int(p.now["i"])
    rate = f"{max(float(row.get('learning_rate', 0)) for row in p.rows) / 10:.2g}"
    advice, lower = f"train longer, or with --learning-rate {rate}", {"learning_rate": rate}
    if p.kind == "images" and look.contrast < BLANK * truth.contrast:
        name = "black" if look.mean < -0.8 else "white" if look.mean > 0.8 else "of one colour"
        cause = "weights that give the same value everywhere"
        return Finding("empty_previews", f"the previews are {name}", i, cause, advice, lower)
    if look.outside > SATURATED:
        what = f"{look.outside:.0%} of the previews' values lie far outside the data's range"
        cause = "an error that grows from step to step of sampling"
        if p.requested.get("target", "flow") in ("v", "flow"):
            return Finding("empty_previews", what, i, cause, advice, lower)
        return Finding("empty_previews", what, i, cause, "train with --target flow", {"target": "flow"})
    if look.variance < COLLAPSED * truth.variance:
        what = f"the previews are nearly all the same: their variance is {look.variance / truth.variance:.1%} of the data's"
        return Finding("empty_previews", what, i, "a collapse of the model", advice, lower)
    return None


def posterior_collapse(p: Diagnosis) -> Finding | None:
    """Latents that tell nothing of the data, so that the decoder works alone."""
    rows = [row for row in p.checked() if p.share(row) >= SETTLED and "kl" in row]
    if len(rows) < 2 or any(row["kl"] > NOTHING for row in rows[-2:]):
        return None
    what = f"the latent tells {rows[-1]['kl']:.2g} nats of a datum, which is nothing: the decoder does without it"
    if float(p.requested.get("beta", 1.0)) > 1:
        return Finding("posterior_collapse", what, int(rows[-2]["i"]), "a KL that weighs too much", "leave --beta out",
                       {"beta": None})  # fmt: skip
    cause = "a KL that costs more than what the first latents tell is worth"
    return Finding("posterior_collapse", what, int(rows[-2]["i"]), cause, "train with --free-bits 0.1", {"free_bits": "0.1"})


def poor_codec(p: Diagnosis) -> Finding | None:
    """An autoencoder that gives images back badly: samples of its codes cannot be better."""
    if not isinstance(p.model, Diffusion) or not isinstance(p.model.codec, LatentCodec) or float(p.model.codec.lost) <= LOST:
        return None
    told = p.model.codec.summary()
    what = f"the autoencoder loses {float(p.model.codec.lost):.0%} of the images' variance (PSNR {told['psnr']:.1f} dB)"
    cause = "an autoencoder that was trained too short, or images whose detail is finer than its codes"
    return Finding("poor_codec", what, 0, cause, "train for longer, or with --no-latent at a smaller --size", {"length": "3"})


def lagging_average(p: Diagnosis) -> Finding | None:
    """Average weights that are worse than the raw ones."""
    rows = [row for row in p.checked() if p.share(row) >= SETTLED and "raw_held_out" in row]
    if len(rows) < 2:
        return None
    first = float(p.checked()[0]["held_out"])
    if any(row["held_out"] - row["raw_held_out"] <= LAG * abs(first - row["raw_held_out"]) for row in rows[-2:]):
        return None
    if any(-gain(row["raw_held_out"], row["held_out"], p.unit) <= UNCERTAIN for row in rows[-2:]):
        return None
    what = f"the average weights are worse than the raw ones: {metric_name(p.unit)} {rows[-1]['held_out']:.3g} against"
    what += f" {rows[-1]['raw_held_out']:.3g}"
    cause = "an average over too many steps"
    advice = "leave --ema-share out" if "ema_share" in p.requested else "train longer"
    return Finding("lagging_average", what, int(rows[-2]["i"]), cause, advice, {"ema_share": None})


def overfitting(p: Diagnosis) -> Finding | None:
    """A held-out loss that rises, at some noise level, or a bound that rises, while that on training data falls."""
    by_level = not p.unit and any(row.get("train_levels") for row in p.checked())
    rows = [row for row in p.checked() if (row.get("train_levels") if by_level else "train_loss" in row)]
    if len(rows) < 4:
        return None
    curves = {"the": ([row["held_out"] for row in rows], [row["train_loss"] for row in rows])} if not by_level else {
        f"at {level} the": ([row["held_out_levels"][k] for row in rows], [row["train_levels"][k] for row in rows])
        for k, level in enumerate(NOISE_NAMES)
    }  # fmt: skip
    for where, (held, seen) in curves.items():
        best = min(range(len(held)), key=held.__getitem__)
        if best < len(held) - 2 and seen[-1] < seen[best] and gain(held[best], min(held[-2:]), p.unit) < -RISE:
            what = f"{where} {metric_name(p.unit)} rose from {held[best]:.3g} to {held[-1]:.3g} while that of training data"
            what += " fell"
            cause = "too few data for a training of this length"
            advice, change = _less(p, rows[best]["i"] / rows[-1]["i"])
            return Finding("overfitting", what, int(rows[best]["i"]), cause, advice, change)
    return None


def copies(p: Diagnosis) -> Finding | None:
    """Samples that lie closer to training data than held-out data do.

    Noise around a mean does so as well, among data that are far apart: it is no copy of anything.
    """
    if not p.shows() or p.now["i"] < ENOUGH:
        return None
    assert p.preview is not None and p.truth is not None
    ours, theirs = p.preview.nearest, p.truth.nearest
    if p.kind == "images" and p.preview.noise(p.truth) > NOISY:
        return None
    if ours >= COPY * theirs or theirs == 0:
        return None
    what = f"samples are {ours / theirs:.2f} times as far from the closest training datum as held-out data are"
    cause = "a model that has learned its training data by heart"
    return Finding("copies", what, int(p.now["i"]), cause, *_less(p, 0.5))


def _less(p: Diagnosis, share: float) -> tuple[str, Mapping[str, str | None]]:
    """Return the advice against learning by heart, and the change: a shorter training where no network is smaller."""
    if p.requested.get("augment") == "none":
        return "give more data, or leave --augment none out", {"augment": None}
    share = max(0.05, share)
    shorter = f"train for {share:.0%} of the time"
    if p.network.sizes.smaller is None:
        return f"give more data, or {shorter}", {"length": f"{share:.2g}"}
    return f"give more data, {shorter}, or train with --network {p.network.sizes.smaller}", {"network": p.network.sizes.smaller}


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        data_range, constant_data, few_data, signal_left, not_learning, dead_parameter, noisy_previews, empty_previews,
        posterior_collapse, poor_codec, lagging_average, overfitting, copies,
    )
}  # fmt: skip


# What a finding leaves nothing to say about.
EXPLAINS = {"few_data": ("not_learning", "lagging_average", "overfitting", "copies"), "constant_data": ("few_data",)}


def examine(patient: Diagnosis) -> tuple[Finding, ...]:
    """Return what the checks find, without what another finding explains."""
    found = {name: finding for name, check in CHECKS.items() if (finding := check(patient)) is not None}
    explained = {name for cause, names in EXPLAINS.items() if cause in found for name in names}
    return tuple(finding for name, finding in found.items() if name not in explained)


def has_stopped_improving(rows: Sequence[Row], key: str = "held_out", least: float = FLAT) -> bool:
    """Tell whether a figure's best value of the last checks is no better than the best before them."""
    values = [float(row[key]) for row in rows if key in row]
    unit = next((row["unit"] for row in reversed(rows) if "unit" in row), None) if key == "held_out" else None
    return len(values) > 2 * PATIENCE and gain(min(values[:-PATIENCE]), min(values[-PATIENCE:]), unit) < least
