"""Evaluations detect the faults of samples, accept good samples, and report what cannot be computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.progress import silent
from reverie.data import Dataset, load_data
from reverie.evaluation.compare import compare, difference_threshold
from reverie.evaluation.memorization import samples_section
from reverie.evaluation.metrics.features import choose_features, dataset_classifier
from reverie.evaluation.metrics.frechet import frechet_distance
from reverie.evaluation.model_metrics import _quality
from reverie.evaluation.quality import quality_section
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.reports import Evaluation, of_label
from reverie.evaluation.sample_metrics import collect_data, measure_samples, measure_sections, sections_without_data
from reverie.evaluation.verdicts import RULES, assess
from reverie.families.diffusion.sampling import DEFAULTS
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.transport import sliced_wasserstein
from tests.conftest import TINY

COUNT = 250


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def digits() -> tuple[Dataset, Dataset, np.ndarray, list[str]]:
    """Training and held-out data, and other images in place of samples, with their labels."""
    data = load_data("digits")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(3))
    train, held, rest = (data.take(part) for part in (order[:3000], order[3000:3500], order[3500 : 3500 + COUNT]))
    x, labels = rest.batch(torch.arange(COUNT))
    assert labels is not None
    return train, held, x[:, 0].numpy(), [data.label_names[int(k)] for k in labels]


def blur(x: np.ndarray) -> np.ndarray:
    return functional.avg_pool2d(torch.from_numpy(x)[:, None], 3, 1, 1)[:, 0].numpy()


def fakes(digits: tuple[Dataset, Dataset, np.ndarray, list[str]], kind: str) -> np.ndarray:
    train, _, x, _ = digits
    noise = np.random.default_rng(0).random(x.shape, np.float32)
    return {
        "fresh": x,
        "noise": noise,
        "blurred": blur(blur(x)),
        "noisy": np.clip(x + 0.8 * (noise - 0.5), 0, 1),
        "repeated": np.repeat(x[:1], COUNT, 0),
        "one class": x[[0] * 2 + list(range(1, COUNT))],
        "memorized": train.batch(torch.arange(COUNT))[0][:, 0].numpy(),
    }[kind]


@pytest.fixture(scope="module")
def found(digits: tuple[Dataset, Dataset, np.ndarray, list[str]]) -> dict[str, dict[str, ReportSection]]:
    train, held, _, labels = digits
    kinds = ("fresh", "noise", "blurred", "noisy", "repeated", "memorized")
    return {
        kind: {s.name: s for s in measure_samples(fakes(digits, kind), train, held, labels=labels, quick=True)}
        for kind in kinds
    }


def verdict(sections: dict[str, ReportSection]) -> tuple[list[str], str]:
    flags, lines = assess(list(sections.values()))
    return flags, " | ".join(lines)


def gap(sections: dict[str, ReportSection], section: str, key: str) -> float:
    """Return how many standard errors a figure lies above its floor."""
    f = sections[section].figures[key]
    return (f["value"] - f["floor"]) / np.hypot(f["error"], f.get("floor_error", 0.0))


def test_held_out_data_score_at_the_floor(found: dict[str, dict[str, ReportSection]]) -> None:
    fresh = found["fresh"]
    flags, message = verdict(fresh)
    assert flags == [] and message.startswith("good")
    for section, key in (("quality", "kid"), ("quality", "frechet"), ("quality", "detail"), ("precision_recall", "precision"),
                         ("precision_recall", "recall"), ("precision_recall", "coverage"), ("memorization", "copies"),
                         ("labels", "label_accuracy"), ("two_sample", "two_sample_accuracy")):  # fmt: skip
        assert abs(gap(fresh, section, key)) < 3.5, (key, fresh[section].figures[key])


def test_noise_is_unlike_the_data(found: dict[str, dict[str, ReportSection]]) -> None:
    flags, message = verdict(found["noise"])
    assert {"low_precision", "feature_shift", "noisy", "distinguishable"} <= set(flags) and "density 0." in message
    assert gap(found["noise"], "quality", "kid") > 10 and gap(found["noise"], "quality", "frechet") > 10
    density = found["noise"]["precision_recall"].figures["density"]
    assert density["value"] < 0.3 * density["floor"]
    assert found["noise"]["two_sample"].figures["two_sample_accuracy"]["value"] > 0.98
    assert found["noise"]["labels"].figures["label_accuracy"]["value"] < 0.3 and "wrong_labels" in flags


def test_blurred_data_are_detected(found: dict[str, dict[str, ReportSection]]) -> None:
    flags, message = verdict(found["blurred"])
    assert {"blurred", "feature_shift"} <= set(flags) and "KID" in message
    assert gap(found["blurred"], "quality", "kid") > 3
    assert verdict(found["noisy"])[0][0] != "blurred" and "noisy" in verdict(found["noisy"])[0]


def test_one_repeated_image_is_a_mode_collapse(found: dict[str, dict[str, ReportSection]]) -> None:
    flags, message = verdict(found["repeated"])
    assert {"repeated", "mode_collapse"} <= set(flags) and "100%" in message and "mode collapse" in message
    assert found["repeated"]["precision_recall"].figures["recall"]["value"] < 0.02


def test_copied_training_data_are_memorized(found: dict[str, dict[str, ReportSection]]) -> None:
    flags, message = verdict(found["memorized"])
    assert flags[0] == "memorized" and "100.0%" in message
    copies = found["memorized"]["memorization"].figures["copies"]
    assert copies["value"] == 1 and copies["floor"] < 0.02
    assert gap(found["memorized"], "quality", "kid") < 3  # distances alone do not detect them
    sheet, histogram = found["memorized"]["memorization"].pictures.values()
    assert all(picture.startswith(b"\x89PNG") for picture in (sheet, histogram))


def test_every_score_has_features_counts_and_seeds(found: dict[str, dict[str, ReportSection]]) -> None:
    for name in ("quality", "precision_recall", "two_sample"):
        figures = found["fresh"][name].figures
        net = figures["features"]
        assert net["name"] == "classifier" and "LeNet" in net["net"] and net["held_out_accuracy"] > 0.95
        assert figures["samples"] == COUNT and figures["held_out_data"] == 500 and figures["evaluation_seed"] == 0
    assert found["fresh"]["quality"].figures["primary_metric"] == "kid" and "KID" in found["fresh"]["quality"].notes[0]
    json.dumps([s.figures for s in found["fresh"].values()])


def test_every_rule_belongs_to_a_section_that_is_measured(found: dict[str, dict[str, ReportSection]]) -> None:
    assert {section for section, _ in RULES.values()} <= {*found["fresh"], "points", "captions", "passages"}


def test_what_cannot_be_measured_is_reported(digits: tuple[Dataset, Dataset, np.ndarray, list[str]]) -> None:
    train, held, x, labels = digits
    pixels = {"features": "pixels", "quick": True}
    one = {s.name: s for s in measure_samples(x[:1], train, held, labels=labels[:1], **pixels)}
    assert "at least two" in one["quality"].figures["not_computable"] and "copies" in one["memorization"].figures
    assert "not measured: distance to the data: " in verdict(one)[1]
    with pytest.raises(UserError, match="2 of 250 samples contain NaN"):
        bad = x.copy()
        bad[:2, 3, 3] = np.nan
        list(measure_samples(bad, train, held))
    with pytest.raises(UserError, match=r"1x27x28.*1x28x28"):
        list(measure_samples(x[:, 1:], train, held))
    plain = [replace(part.take(torch.arange(200)), labels=None, label_names=()) for part in (train, held)]
    found = {s.name: s for s in measure_samples(x[:100], *plain, quick=True)}
    assert found["quality"].figures["features"]["name"] == "general" and "labels" not in found and "good" in verdict(found)[1]
    without = {s.name: s for s in measure_samples(x[:50], *plain, features="classifier", quick=True)}
    assert "no labels" in without["quality"].figures["not_computable"]
    lost = {s.name: s for s in sections_without_data(x, labels, "the data are missing")}
    assert {s.figures.get("not_computable") for s in lost.values()} == {None, "the data are missing"}
    assert "too few figures" in verdict(lost)[1] and verdict(lost)[0] == []


def test_constant_images_have_faults(digits: tuple[Dataset, Dataset, np.ndarray, list[str]]) -> None:
    train, held, x, _ = digits
    black = {s.name: s for s in measure_samples(np.zeros_like(x[:60]), train, held, features="pixels", quick=True)}
    assert {"repeated", "mode_collapse", "blurred"} <= set(verdict(black)[0])
    flat = Dataset("flat", torch.zeros(60, 1, 28, 28, dtype=torch.uint8))
    found = {s.name: s for s in measure_samples(x[:50], flat, flat.take(torch.arange(20)), quick=True)}
    assert "distinguishable" in verdict(found)[0] or "feature_shift" in verdict(found)[0]


def test_any_function_gives_features(digits: tuple[Dataset, Dataset, np.ndarray, list[str]]) -> None:
    train, held, x, _ = digits

    def quarters(images: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool2d(images, 2)

    found = next(s for s in measure_samples(x, train, held, features=quarters, quick=True) if s.name == "quality")
    assert found.figures["features"]["name"] == "quarters" and abs(gap({"quality": found}, "quality", "kid")) < 3.5


@pytest.mark.slow
def test_points_and_their_exact_truth(spiral_run: Run) -> None:
    found = api.evaluate(spiral_run, 400, quick=True)
    figures = found.figures()
    assert figures["samples"] == 400 and figures["seed"] == 0 and figures["sampler"] == DEFAULTS["points"][0]
    for key in ("mean_distance", "coverage_ks", "sliced_wasserstein", "sinkhorn", "mmd"):
        assert figures[key] > -0.01 and f"{key}_error" in figures and f"{key}_floor" in figures
    assert figures["mean_distance_floor"] < 1e-3 and 0 < figures["mmd_p_value"] <= 1
    assert found["verdict"] == list(found.verdict) and "sliced Wasserstein" in str(found)
    data = load_data("spiral", 400, 5).x.numpy()
    train, held = load_data("spiral", 2000).split(0)[0], load_data("spiral", 800, 9)
    right = {s.name: s for s in measure_samples(data, train, held, source="spiral", quick=True)}
    wrong = {s.name: s for s in measure_samples(data + 0.2, train, held, source="spiral", quick=True)}
    copies = {s.name: s for s in measure_samples(train.x.numpy()[:400], train, held, source="spiral", quick=True)}
    assert verdict(right)[0] == [] and "shifted" in verdict(wrong)[0] and "memorized" in verdict(copies)[0]


def test_the_command_measures_images_writes_a_report_and_compares(command, digits_run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(digits_run.path, other)
    words = ("--quick", "-n", 40, "--steps", 4, "--seed", 2)
    code, out, err = command("evaluate", digits_run.path, *words, "--out", tmp_path / "report.html", "--json")
    figures = json.loads(out)
    assert code == 0 and err == "" and figures["samples"] == 40 and figures["seed"] == 2 and figures["verdict"]
    page = (tmp_path / "report.html").read_text()
    assert (
        figures["verdict"][0] in page.replace("&#x27;", "'")
        and page.count("<img") >= 3
        and "http" not in page.split("<body>")[1]
    )
    words += ("--features", "pixels", "--label", "3")  # a label without samples for the NFE section
    code, out, err = command("evaluate", digits_run.path, other, *words, "--out", tmp_path / "both.html")
    assert code == 0 and "no significant difference" in out and "ms an image" in err
    page = (tmp_path / "both.html").read_text()
    assert digits_run.path.name in page and other.name in page
    assert command("evaluate", digits_run.path, *words, "--quiet") == (0, "", "")


def test_a_label_is_measured_against_its_own_data(digits_run: Run) -> None:
    found = api.evaluate(digits_run, 20, label="3", steps=3, quick=True)
    figures = found["sections"]["labels"]
    assert found["label"] == "3" and list(figures["by_label"]) == ["3"]
    assert found["sections"]["memorization"]["training_data"] < 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--features", "pixel"), "did you mean 'pixels'"),
        (("--out", "report.pdf"), "report.pdf"),
        (("-n", "0"), "from 1 to"),
        (("{run}", "{run}-gone"), "there is no run"),
        (("--label", "eleven"), "unknown label"),
    ],
)
def test_mistakes_of_the_command(command, digits_run: Run, words: tuple[str, ...], message: str) -> None:
    code, out, err = command("evaluate", digits_run.path, *(w.format(run=digits_run.path) for w in words))
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err


@pytest.fixture(scope="module")
def few_photos(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on ten colour pictures of two labels, of which one is held out."""
    folder = tmp_path_factory.mktemp("few")
    random = np.random.default_rng(0)
    for k in range(10):
        (folder / "photos" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / "photos" / "ab"[k % 2] / f"{k}.png")
    return reverie.train(str(folder / "photos"), folder / "run", steps=3, network=TINY, batch=4)


@pytest.mark.parametrize("words", [(), ("--label", "a"), ("--label", "b")])
def test_ten_images_are_measured_as_far_as_they_go(command, few_photos: Run, words: tuple[str, ...]) -> None:
    code, out, _ = command("evaluate", few_photos.path, "--quick", "-n", 8, "--steps", 3, "--json", *words)
    sections = json.loads(out, parse_constant=pytest.fail)["sections"]
    assert code == 0
    if "not_computable" in sections["memorization"]:  # the one held-out image has the other label
        assert f"no held-out data of the label '{words[1]}'" in sections["memorization"]["not_computable"]
    else:
        assert "value" in sections["likelihood"]["flow"] and "error" not in sections["likelihood"]["flow"]
    if words:
        both = ("evaluate", few_photos.path, few_photos.path, "--quick", "-n", 8, "--steps", 3, "--features", "pixels", *words)
        assert command(*both)[0] == 0


def test_no_data_to_measure_against(digits: tuple[Dataset, Dataset, np.ndarray, list[str]]) -> None:
    train, held, x, _ = digits
    with pytest.raises(UserError, match="no held-out data"):
        measure_samples(x, train, held.take(torch.arange(0)))


def test_the_classifier_of_one_label_is_trained_on_all_labels(
    digits: tuple[Dataset, Dataset, np.ndarray, list[str]],
) -> None:
    train, held, x, labels = digits
    threes = np.array(labels) == "3"
    own = of_label(train, "3"), of_label(held, "3")
    wrong = collect_data(x[~threes][:60], *own, ["3"] * 60, "auto", 0, True, silent, "", (train, held))
    right = collect_data(x[threes], *own, ["3"] * int(threes.sum()), "auto", 0, True, silent, "", (train, held))
    shares = [{s.name: s for s in measure_sections(m)}["labels"].figures["label_accuracy"] for m in (wrong, right)]
    assert shares[0]["value"] < 0.1 and shares[1]["value"] > 0.8 and shares[1]["floor"] > 0.9
    with pytest.raises(UserError, match="one label"):
        dataset_classifier(*own, silent)


def test_too_few_points_are_reported() -> None:
    train, held = load_data("spiral", 400).split(0)
    for samples, kept in ((1, 20), (20, 3)):
        found = {
            s.name: s for s in measure_samples(train.x.numpy()[:samples], train, held.take(torch.arange(kept)), quick=True)
        }
        assert f"2 samples and 4 held-out points, got {samples} and {kept}" in found["points"].figures["not_computable"]


def test_duplicates_in_the_data_are_not_a_fault_of_the_samples(
    digits: tuple[Dataset, Dataset, np.ndarray, list[str]],
) -> None:
    x = digits[0].batch(torch.arange(200))[0]
    doubled = x[torch.arange(200) // 2]
    real = samples_section(doubled, None, doubled.roll(30, 0))
    assert real.verdict == () and real.figures["repeated"]["value"] == real.figures["repeated"]["floor"] == 1
    some = samples_section(torch.cat([x[:180], x[:20]]), None, x)
    assert len(some.verdict) == 1 and "20%" in some.verdict[0] and "collapse" not in some.verdict[0]
    assert "mode collapse" in samples_section(x[:1].expand(50, -1, -1, -1), None, doubled[::2]).verdict[0]


def test_memorized_sets_of_few_images_are_detected() -> None:
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), np.uint8))
    train, held = Dataset("few", x[:18]), Dataset("few", x[18:])
    copies = train.batch(torch.arange(100) % 18)[0][:, 0].numpy()
    fresh = np.random.default_rng(1).random((100, 8, 8), np.float32)
    section = {s.name: s for s in measure_samples(copies, train, held, quick=True)}["memorization"]
    assert "100.0%" in section.verdict[0] and "leave-one-out" in section.notes[-1]
    assert section.figures["copies"]["floor"] == 0 and section.figures["floor_count"] == 18
    assert {s.name: s for s in measure_samples(fresh, train, held, quick=True)}["memorization"].verdict == ()
    alone = {s.name: s for s in measure_samples(copies, train.take(torch.arange(1)), held, quick=True)}["memorization"]
    assert alone.figures["floor_source"] == "held-out data" and len(alone.pictures) == 2


def test_the_frechet_distance_and_its_floor_have_one_count(
    digits: tuple[Dataset, Dataset, np.ndarray, list[str]],
) -> None:
    train, held, x, _ = digits
    few = held.take(torch.arange(50))
    m = collect_data(x, train, few, None, replace(choose_features("pixels", train, few), learned=True), 0, True, silent, "")
    figures = quality_section(m).figures
    by_hand = np.mean([frechet_distance(part, m.train_features) for part in m.sample_features.split(50)])
    assert figures["frechet"]["value"] == pytest.approx(by_hand) and figures["frechet"]["samples"] == 50
    assert figures["frechet_all"]["value"] == pytest.approx(frechet_distance(m.sample_features, m.train_features))
    assert figures["frechet_all"]["interval"][0] < figures["frechet_all"]["value"] < 0.8 * figures["frechet"]["value"]


def test_the_floor_of_points_is_not_measured_against_itself() -> None:
    train, held = load_data("spiral", 400).split(0)
    half = len(held) // 2
    m = collect_data(train.x.numpy()[:40], train, held, None, "auto", 0, True, silent, "spiral")
    _, quality, (floor, _) = _quality(m)
    data = m.subset(held)
    assert floor == pytest.approx(float(sliced_wasserstein(data[:half], data[half:], p=1)))
    assert quality(Samples(data[:half].numpy(), None))[0] == pytest.approx(floor)


def test_data_that_are_missing(command, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for k in range(12):
        Image.fromarray(random.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{k}.png")
    run = reverie.train(str(folder), tmp_path / "run", steps=2, network=TINY, batch=4)
    Image.fromarray(random.integers(0, 255, (8, 8), np.uint8)).save(folder / "new.png")
    code, out, _ = command("evaluate", run.path, "-n", 4, "--steps", 2, "--json")
    why = json.loads(out)["sections"]["quality"]["not_computable"]
    assert code == 0 and "12" in why and "13" in why and "--data" in why
    shutil.rmtree(folder)
    code, out, _ = command("evaluate", run.path, "-n", 4, "--steps", 2)
    assert code == 0 and str(folder) in out and "too few figures" in out


def made(run: str, kid: float, error: float, **more: object) -> Evaluation:
    figures = {"kid": {"value": kid, "error": error, "floor": 0.0}, **more}
    facts = {"run": run, "fingerprint": "a", "samples": 9, "processor_milliseconds_per_sample": 1.0}
    return Evaluation(facts, (ReportSection("quality", "q", figures=figures),), (), ())


def test_many_equal_runs_seldom_differ() -> None:
    random = np.random.default_rng(0)
    rows = [compare([made(f"r{k}", float(v), 1.0) for k, v in enumerate(random.normal(size=6))]).rows()[0] for _ in range(600)]
    share = np.mean([bool(row.worse) for row in rows])
    assert 0.01 < share < 0.09  # 5 %, with a standard error of 0.9 %; 2 standard errors for all would give 20 %
    assert difference_threshold(2) == pytest.approx(1.96, abs=0.001)


def test_differences_within_noise_are_no_differences() -> None:
    near = compare([made("runs/a", 1.0, 0.1), made("runs/b", 1.2, 0.1)])
    assert near.figures()["comparison"]["kid"]["significantly_worse"] == [] and "no significant difference" in near.verdict()[0]
    far = compare([made("runs/a", 1.0, 0.1), made("runs/b", 1.2, 0.1), made("runs/c", 1.5, 0.1)])
    assert far.figures()["comparison"]["kid"] | {"values": 0} == {
        "values": 0, "best": "a", "significantly_worse": ["c"], "with_errors": True,
    }  # fmt: skip
    assert far.verdict()[0].startswith("a ") and "KID" in far.verdict()[0]
    assert "1 ± 0.1 *" in str(far) and "1.2 ± 0.1 ~" in str(far)
    high = {"detail": {"value": 0.9, "error": 0.01, "floor": 1.0}}, {"detail": {"value": 1.3, "error": 0.01, "floor": 1.0}}
    detail = compare([made("a", 1, 1, **high[0]), made("b", 1, 1, **high[1])]).figures()["comparison"]["detail"]
    assert detail["best"] == "a" and detail["significantly_worse"] == ["b"]
    with pytest.raises(UserError, match="at least two runs"):
        compare([made("a", 1, 1)])
