"""Real-world tables: gaps, ids, dates, other delimiters and decimals, and inconsistent rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import Dataset, csv_table, load_data

ROWS = 120


def people() -> Any:
    """A frame with an id, a date, words, a label, gaps, and a mostly empty column."""
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({
        "id": np.arange(ROWS) * 3 + 1000,
        "name": [f"person {k}" for k in range(ROWS)],
        "born": pandas.to_datetime([f"19{k % 90 + 10}-0{k % 9 + 1}-11" for k in range(ROWS)]),
        "group": ["control", "treated"] * (ROWS // 2),
        "age": random.integers(18, 80, ROWS).astype(float),
        "income": random.normal(3e4, 9e3, ROWS).round(),
        "height": random.normal(172, 9, ROWS).round(1),
        "pulse": random.normal(70, 5, ROWS).round(),
    })  # fmt: skip
    for name, step in (("age", 19), ("income", 20), ("height", 21)):
        frame.loc[step - 1 :: step, name] = np.nan
    frame.loc[40:, "pulse"] = np.nan
    return frame


def written(frame: Any, kind: str, folder: Path) -> Any:
    path = folder / f"people.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    return frame if kind == "frame" else path


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_gaps_are_filled_and_left_out_columns_named(kind: str, tmp_path: Path) -> None:
    frame = people()
    data = load_data(written(frame, kind, tmp_path))
    assert data.columns == ("age", "income", "height") and data.label_names == ("control", "treated") and len(data) == ROWS
    wanted = frame[list(data.columns)]
    assert np.allclose(data.batch(torch.arange(ROWS))[0], wanted.fillna(wanted.median()).to_numpy(), rtol=1e-6)
    counts = {name: int(frame[name].isna().sum()) for name in data.columns}
    assert data.report["filled"] == counts and all(counts.values())
    assert data.report["left_out"].keys() == {"id", "name", "born", "pulse"}
    message = " ".join(data.notes)
    for word in ("id", "name", "born", "pulse", *(f"{name} {count}" for name, count in counts.items())):
        assert word in message


def test_frame_csv_and_parquet_give_the_same_data(tmp_path: Path) -> None:
    frame = people()
    frame["label"] = [1.0, 2.0, np.nan, 1.0] * (ROWS // 4)
    made = [load_data(written(frame, kind, tmp_path)) for kind in ("frame", "csv", "parquet")]
    assert len({data.fingerprint() for data in made}) == 1 and len({data.notes for data in made}) == 1
    assert made[0].label_names == ("1", "2", "missing") and made[0].label_counts() == [60, 30, 30]


def of(text: str, folder: Path, encoding: str = "utf-8", **options: Any) -> Dataset:
    (folder / "a.csv").write_bytes(text.encode(encoding))
    return load_data(folder / "a.csv", **options)


def x_of(data: Dataset) -> list[list[float]]:
    assert isinstance(data.x, torch.Tensor)
    found: list[list[float]] = data.x.tolist()
    return found


@pytest.mark.parametrize(
    ("text", "line"),
    [("1,2\n3,4,5\n", 2), ("a,b\n1,2\n\n3,4\n5\n", 5), ("a;b\n1;2\n3;4;5\n", 3), ('a,b\n"x\ny",2\n1,2,3\n', 4)],
)
def test_rows_of_another_width_are_refused_by_line(text: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"line {line} of .*a\.csv"):
        of(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "encoding", "x", "message"),
    [
        (
            "Größe;Gewicht\n1,85;70,5\n1,6;1.060\n", "cp1252", [[1.85, 70.5], [1.6, 1060]],
            ("semicolons", "decimal commas", "with a header"),
        ),
        ("1,5;2\n2,5;3\n", "utf-8", [[1.5, 2], [2.5, 3]], ("semicolons", "decimal commas", "no header")),
        ('a,b\n"1,5",2\n"2,25",3\n', "utf-8", [[1.5, 2], [2.25, 3]], ("by commas", "decimal commas")),
        ('a,b\n"1,500",2\n"2,250.5",3\n', "utf-8", [[1500, 2], [2250.5, 3]], ("commas between thousands",)),
        ("a\tb\n1,5\t2\n2,5\t3\n", "utf-16", [[1.5, 2], [2.5, 3]], ("tabs", "UTF-16")),
        ("sep=;\na;b\n1,5;20 %\n2,5;30 %\n", "utf-8", [[1.5, 20], [2.5, 30]], ("semicolons", "with a header")),
        ("a|b\n1.5|2\n2.5|3\n", "utf-8", [[1.5, 2], [2.5, 3]], ("bars",)),
        ("a,b,\n1,2,\n3,4,\n,,\n", "utf-8", [[1, 2], [3, 4]], ("by commas",)),
    ],
)  # fmt: skip
def test_formats_are_detected_and_described(
    text: str, encoding: str, x: list[list[float]], message: tuple[str, ...], tmp_path: Path
) -> None:
    data = of(text, tmp_path, encoding)
    assert np.allclose(x_of(data), x) and all(word in data.report["table"] for word in message)


def test_first_rows_with_gaps_are_not_headers(tmp_path: Path) -> None:
    assert len(of("1,,3\n4,5,6\n7,8,9\n", tmp_path)) == 3


def test_few_words_among_numbers_are_refused(tmp_path: Path) -> None:
    text = "a,b,label\n" + "1,2,0\n3,4.5,1\n" * 20 + "5,about 6,other\n"
    with pytest.raises(UserError, match=r"'about 6' in line 42 .* column b .*--columns"):
        of(text, tmp_path)
    data = of(text, tmp_path, columns="a")
    assert data.columns == ("a",) and data.label_names == ("0", "1", "other") and list(data.report["left_out"]) == ["b"]


IDS = {
    "customer_id,a,b\n": lambda k: f"{(k * 7919) % 1000},{k % 5},{k * k % 7}",
    ",a,b\n": lambda k: f"{k},{k % 5},{k * k % 7}",
    "subject,a,b\n": lambda k: f"{(k * 7) % 30 + 1},{k % 5},{k * k % 7}",
    "number of case,a,b\n": lambda k: f"{100 + 3 * k},{k % 5},{k * k % 7}",
    "timestamp,a,b\n": lambda k: f"{1.7e9 + 60 * k},{k % 5},{k * k % 7}",
    "when,a,b\n": lambda k: f"{datetime.date(2024, 1, 1) + datetime.timedelta(days=k):%d.%m.%Y},{k % 5},{k * k % 7}",
}  # fmt: skip


@pytest.mark.parametrize("head", IDS)
def test_ids_row_numbers_and_times_are_left_out(head: str, tmp_path: Path) -> None:
    text = head + "\n".join(IDS[head](k) for k in range(30))
    data = of(text, tmp_path)
    assert data.columns == ("a", "b") and list(data.report["left_out"]) == [head.split(",")[0] or "index"]
    if not head.startswith("when"):
        assert len(of(text, tmp_path, columns="all").columns) == 3
        assert of(text, tmp_path, columns=["b"]).columns == ("b",)


def test_columns_that_resemble_ids_are_kept(tmp_path: Path) -> None:
    rows = "\n".join(f"{k},{k % 11 / 2},{2000 + k % 9},{k % 6}" for k in range(40))
    assert of("x,width,year,humidity\n" + rows, tmp_path).columns == ("x", "width", "year", "humidity")
    assert x_of(of("5\n6\n7\n", tmp_path)) == [[5], [6], [7]]


def weather(rows: int = 400) -> str:
    random = np.random.default_rng(1)
    warmth = np.convolve(random.normal(size=rows + 19), np.ones(20) / 20, "valid") * 20 + 10
    days = [datetime.date(2022, 1, 1) + datetime.timedelta(days=k) for k in range(rows)]
    return "".join(f"{d},{w:.3f}\n" if k % 50 != 7 else f"{d},\n" for k, (d, w) in enumerate(zip(days, warmth, strict=True)))


def test_series_are_hinted_at(tmp_path: Path) -> None:
    data = of("day,warmth\n" + weather(), tmp_path)
    hint = next(note for note in data.notes if "--window" in note)
    window = int(hint.split("--window ")[1].split()[0].rstrip(",;"))
    assert "day" in hint and "warmth" in hint and data.columns == ("warmth",)
    assert load_data(tmp_path / "a.csv", window=window).kind == "series"
    flat = "".join(f"{k},{v:.3f}\n" for k, v in enumerate(np.random.default_rng(0).normal(size=200)))
    assert not any("--window" in note for note in of("time,a\n" + flat, tmp_path).notes)
    sorted_by_class = "".join(f"{k // 50 + k % 7 / 10},{'abc'[k // 50]}\n" for k in range(150))
    assert not any("--window" in note for note in of("petal,species\n" + sorted_by_class, tmp_path).notes)


def test_series_drop_times_and_interpolate_gaps(tmp_path: Path) -> None:
    data = of("day,warmth\n" + weather(), tmp_path, window=40)
    assert data.shape == (40, 1) and data.columns == ("warmth",) and data.report["filled"] == {"warmth": 8}
    x = data.batch(torch.arange(10))[0].flatten()
    assert float(x[7]) == pytest.approx(float(x[6] + x[8]) / 2, abs=1e-5)
    backwards = "".join(reversed(weather().splitlines(keepends=True)))
    assert torch.equal(of("day,warmth\n" + backwards, tmp_path, window=40).batch(torch.arange(10))[0].flatten(), x)


@pytest.mark.parametrize(
    ("columns", "message"),
    [("agee", "did you mean 'age'"), ("name", "name .*no numbers"), ("", "cannot read"), ("age,age", "age,age")],
)
def test_invalid_columns_are_refused(columns: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_data(people(), columns=columns)
    with pytest.raises(UserError, match="--columns"):
        load_data("spiral", columns="x")


def test_time_index_of_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(1)
    days = pandas.date_range("2024-01-01", periods=300, name="day")
    frame = pandas.DataFrame({"warmth": np.convolve(random.normal(size=319), np.ones(20), "valid")}, index=days)
    frame.to_csv(tmp_path / "a.csv")
    here, there = load_data(frame), load_data(tmp_path / "a.csv")
    assert here.columns == ("warmth",) and here.report["left_out"].keys() == {"day"} and here.notes == there.notes
    assert any("--window" in note for note in here.notes)
    assert torch.equal(
        load_data(frame, window=20).batch(torch.arange(15))[0], load_data(frame[::-1], window=20).batch(torch.arange(15))[0]
    )


def test_wide_tables_are_read_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = csv_table._rows
    passes: list[Path] = []
    monkeypatch.setattr(csv_table, "_rows", lambda path, form: passes.append(path) or read(path, form))
    columns = [["ab"[k % 2] if j % 2 else f"word {k}" for k in range(8)] for j in range(200)]
    rows = "\n".join(",".join([f"{k / 2}", *row]) for k, row in enumerate(zip(*columns, strict=True)))
    data = of("x," + ",".join(f"c{j}" for j in range(200)) + "\n" + rows, tmp_path)
    assert data.columns == ("x",) and len(data.report["left_out"]) == 200 and len(passes) <= 3
