"""Image folders and zip files of every format, valid and broken."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from reverie.base.errors import UserError
from reverie.data import Dataset, image_folder, load_data, memory_limits, sources
from reverie.data.image_labels import LABELS
from reverie.data.lazy import FileImages
from reverie.draw.picture import contact_sheet, enlargement
from reverie.runs.config import DataConfig
from reverie.runs.source_data import load_source_data, reading_options


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def packed(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(seed: int = 0, height: int = 8, width: int = 8, channels: int = 3) -> bytes:
    return packed(Image.fromarray(noise(height, width, channels, seed)))


def header_only(width: int, height: int) -> bytes:
    """A PNG with a header and a few bytes of data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    body = zlib.compress(b"\0" * 1000)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def write(root: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def zipped(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def pixels(data: Dataset) -> torch.Tensor:
    assert isinstance(data.x, torch.Tensor)
    return data.x


def broken(data: Dataset) -> dict[str, str]:
    return {row["file"]: row["reason"] for row in data.report["broken"]}


BAD = {
    "truncated.png": (png(1, 64, 64)[:900], "truncated"),
    "truncated.jpg": (packed(Image.fromarray(noise(64, 64)), "JPEG")[:900], "truncated"),
    "empty.png": (b"", "empty"),
    "text.jpg": (b"dear diary\n" * 20, "not an image"),
    "bomb.png": (header_only(30_000, 30_000), "too large .900 megapixels; the limit is 64"),
    "large.png": (header_only(10_000, 10_000), "too large .10000 x 10000"),
    "short.png": (header_only(50, 50), "truncated|decoded"),
}


def test_broken_files_are_skipped_with_reasons(tmp_path: Path) -> None:
    good = {f"good{k}.png": png(k) for k in range(3)}
    write(tmp_path, good | {name: content for name, (content, _) in BAD.items()})
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "self.png").symlink_to("self.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_data(str(tmp_path))
    assert len(data) == 3 and data.shape == (3, 8, 8) and data.report["count"] == 3
    reasons = broken(data)
    assert set(reasons) == {*BAD, "pipe.png", "gone.png", "self.png"}
    for name, (_, match) in BAD.items():
        assert re.search(match, reasons[name]), name
    assert any(note.startswith("10 files skipped") for note in data.notes)
    assert torch.equal(pixels(data)[0], torch.from_numpy(noise(8, 8, 3, 0)).permute(2, 0, 1))


@pytest.mark.parametrize("name", BAD)
def test_strict_refuses_and_names_the_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"good.png": png(), name: BAD[name][0]})
    with pytest.raises(UserError, match=f"{name}: .*({BAD[name][1]})"):
        load_data(str(tmp_path), strict=True)


@pytest.mark.parametrize("name", BAD)
def test_nothing_usable_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: BAD[name][0]})
    with pytest.raises(UserError, match=f"0 usable images found in .*{name}") as caught:
        load_data(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_empty_folders_name_the_suffixes(tmp_path: Path) -> None:
    (tmp_path / "photo").mkdir()
    write(tmp_path, {"photos/a.png": png()})
    with pytest.raises(UserError, match=r"0 images found in .*photo; looked for \.png \.jpg .*; did you mean .*photos\?"):
        load_data(str(tmp_path / "photo"))
    with pytest.raises(UserError, match=r"did you mean '.*photos'"):
        load_data(str(tmp_path / "fotos"))
    with pytest.raises(UserError, match="single image"):
        load_data(str(tmp_path / "photos" / "a.png"))


RED = np.zeros((4, 6, 3), np.uint8) + np.array([200, 10, 10], np.uint8)


def cmyk() -> bytes:
    return packed(Image.fromarray(RED).convert("CMYK"), "JPEG", quality=100)


def palette(transparent: bool) -> bytes:
    image = Image.new("P", (6, 4), 0)
    image.putpalette([200, 10, 10, 0, 0, 255] + [0] * 762)
    image.putpixel((0, 0), 1)
    return packed(image, **({"transparency": 1} if transparent else {}))


def animated() -> bytes:
    frames = [Image.fromarray(RED), Image.fromarray(255 - RED)]
    return packed(frames[0], "GIF", save_all=True, append_images=frames[1:])


def rgba() -> bytes:
    image = np.dstack([RED, np.full((4, 6), 255, np.uint8)])
    image[0, 0] = (0, 0, 255, 0)
    return packed(Image.fromarray(image))


COLOUR = {
    "rgb.png": (packed(Image.fromarray(RED)), (200, 10, 10), None),
    "cmyk.jpg": (cmyk(), None, "1 CMYK image converted to RGB"),
    "palette.png": (palette(False), (0, 0, 255), "1 palette image converted to RGB"),
    "clear.png": (palette(True), (255, 255, 255), "transparency"),
    "rgba.png": (rgba(), (255, 255, 255), "transparency"),
    "movie.gif": (animated(), (200, 10, 10), "first frame"),
    "photo.webp": (packed(Image.fromarray(RED), "WEBP", lossless=True), (200, 10, 10), None),
    "photo.bmp": (packed(Image.fromarray(RED), "BMP"), (200, 10, 10), None),
    "photo.tif": (packed(Image.fromarray(RED), "TIFF"), (200, 10, 10), None),
    "photo.ppm": (packed(Image.fromarray(RED), "PPM"), (200, 10, 10), None),
}


@pytest.mark.parametrize("name", COLOUR)
def test_colour_modes(tmp_path: Path, name: str) -> None:
    content, corner, note = COLOUR[name]
    data = load_data(str(write(tmp_path, {name: content})))
    assert data.shape == (3, 4, 6)
    x = pixels(data)[0].int()
    if corner is not None:
        assert x[:, 0, 0].tolist() == list(corner)
    assert (x[:, 2:, 2:] - torch.tensor([200, 10, 10])[:, None, None]).abs().max() <= 6  # JPEG is lossy
    assert note is None or any(note in line for line in data.notes), data.notes


GREY16 = np.linspace(0, 65535, 24).round().astype(np.uint16).reshape(4, 6)
GREY8 = (GREY16 / 257).round().astype(np.uint8)
GREY = {
    "l.png": (packed(Image.fromarray(GREY8)), GREY8),
    "one.png": (packed(Image.fromarray(GREY8 > 99)), 255 * (GREY8 > 99)),
    "la.png": (packed(Image.merge("LA", [Image.fromarray(GREY8), Image.new("L", (6, 4), 255)])), GREY8),
    "i16.png": (packed(Image.fromarray(GREY16)), GREY8),
    "i16.tif": (packed(Image.fromarray(GREY16), "TIFF"), GREY8),
    "i32.tif": (packed(Image.fromarray(GREY16.astype(np.int32)), "TIFF"), GREY8),
    "f.tif": (packed(Image.fromarray(GREY8.astype(np.float32) / 255), "TIFF"), GREY8),
    "f255.tif": (packed(Image.fromarray(GREY8.astype(np.float32)), "TIFF"), GREY8),
    "p.pgm": (packed(Image.fromarray(GREY8), "PPM"), GREY8),
    "rgb.png": (packed(Image.fromarray(GREY8).convert("RGB")), GREY8),
}


@pytest.mark.parametrize("name", GREY)
def test_grey_modes(tmp_path: Path, name: str) -> None:
    content, expected = GREY[name]
    data = load_data(str(write(tmp_path, {name: content})))
    assert data.shape == (1, 4, 6) and pixels(data)[0, 0].tolist() == expected.tolist()
    colour = load_data(str(tmp_path), channels=3)
    assert colour.shape == (3, 4, 6) and pixels(colour)[0, 2].tolist() == expected.tolist()


def test_mixed_modes_become_colour_with_a_note(tmp_path: Path) -> None:
    content = {f"c{k}.jpg": packed(Image.fromarray(noise(6, 6, 3, k)).convert("CMYK"), "JPEG") for k in range(3)}
    content |= {f"p{k}.png": packed(Image.fromarray(noise(6, 6, 3, k)).convert("P")) for k in range(2)}
    data = load_data(str(write(tmp_path, content | {"rgb.png": png(5, 6, 6)})))
    assert data.shape == (3, 6, 6) and "3 CMYK and 2 palette images converted to RGB" in data.notes
    assert data.report["modes"] == {"CMYK": 3, "P": 2, "RGB": 1} and data.report["sizes"] == {"6x6": 6}
    assert load_data(str(tmp_path), channels=1).shape == (1, 6, 6)
    kept = load_data(str(write(tmp_path, {"rgba.png": rgba()})), channels=4, size="4x6")
    assert kept.shape == (4, 4, 6) and pixels(kept)[-1, 3, 0, 0] == 0 and pixels(kept)[-1, 3, 2, 2] == 255
    with pytest.raises(UserError, match="channels must be"):
        load_data(str(tmp_path), channels=2)


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_rotation_is_undone(tmp_path: Path, turn: int) -> None:
    upright = Image.fromarray(noise(4, 6))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # orientation -> the Image.Transpose already applied to the stored image
    stored = upright.transpose(Image.Transpose(undo[turn])) if turn > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = turn
    data = load_data(str(write(tmp_path, {"a.png": packed(stored, exif=exif)})))
    assert data.shape == (3, 4, 6) and data.report["sizes"] == {"4x6": 1}
    assert torch.equal(pixels(data)[0].permute(1, 2, 0), torch.from_numpy(np.asarray(upright).copy()))
    assert any("upright" in note for note in data.notes) == (turn > 1)


def halves(height: int, width: int) -> np.ndarray:
    """Left half black, right half white."""
    image = np.zeros((height, width), np.uint8)
    image[:, width // 2 :] = 255
    return image


def is_halves(x: torch.Tensor) -> bool:
    """Ignoring the two middle columns and slight ringing of the filter."""
    return int(x[:, :4].max()) < 12 and int(x[:, 6:].min()) > 243


def test_fits_have_known_pixels(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": packed(Image.fromarray(halves(20, 40)))})
    crop = pixels(load_data(str(tmp_path), size="10", fit="crop"))[0, 0]
    assert crop.shape == (10, 10) and is_halves(crop)
    stretch = pixels(load_data(str(tmp_path), size="10", fit="stretch"))[0, 0]
    assert is_halves(stretch)
    pad = pixels(load_data(str(tmp_path), size="10", fit="pad"))[0, 0]
    assert len(pad[:2].unique()) == 1 and 110 < int(pad[0, 0]) < 145  # borders of the mean colour of the edge
    assert is_halves(pad[3:7]) and torch.equal(pad[:2], pad[-3:-1])
    with pytest.raises(UserError, match=r"did you mean 'crop'.* auto"):
        load_data(str(tmp_path), fit="corp")


def test_images_of_very_different_shapes_are_padded(tmp_path: Path) -> None:
    """A square crop removes most of a thin figure, and a quarter of a 4:3 photo, which is noted."""
    thin = write(tmp_path / "thin", {f"im{k}.png": png(k, *[(40, 40), (40, 12), (16, 60)][k % 3]) for k in range(9)})
    data = load_data(str(thin))
    assert data.report["fit"] == "pad" and data.fingerprint() == load_data(str(thin), fit="pad").fingerprint()
    assert any("padded" in note and "more than half of 67%" in note and "--fit crop" in note for note in data.notes)
    cut = load_data(str(thin), fit="crop")
    assert cut.report["fit"] == "crop" and cut.fingerprint() != data.fingerprint()
    assert any("removes 70% of the height or width" in note for note in cut.notes)
    photos = load_data(str(write(tmp_path / "photos", {f"im{k}.png": png(k, 90, 120) for k in range(4)})))
    assert photos.report["fit"] == "crop" and any("removes 25% of the width" in note for note in photos.notes)
    assert any("--size 48x64" in note for note in photos.notes)
    square = load_data(str(write(tmp_path / "square", {f"im{k}.png": png(k, 90, 90) for k in range(4)})))
    assert square.report["fit"] == "crop" and not any("--fit" in note for note in square.notes)
    np.save(tmp_path / "a.npy", noise(4 * 90, 20, 1).reshape(4, 90, 20))
    assert load_data(str(tmp_path / "a.npy")).report["fit"] == "pad"
    letters = load_data(str(write(tmp_path / "letters", {f"im{k}.png": png(k, 120, 20 + k) for k in range(4)})))
    assert letters.shape == (3, 64, 64), "padded by its short side, a letter of 120 x 20 would be 3 pixels wide"


def test_the_shape_is_reported_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{'ab'[k % 2]}/{k}.png": png(k, 30, 20) for k in range(8)})
    seen: list[Dataset] = []
    data = load_data(str(tmp_path), on_shape=seen.append)
    (form,) = seen
    assert form.shape == data.shape == (3, 28, 20) and len(form) == 8 and form.label_names == ("a", "b")
    assert form.kind == data.kind == "images"
    monkeypatch.setattr(image_folder, "_decode_all", None)
    with pytest.raises(ZeroDivisionError):
        load_data(str(tmp_path), on_shape=lambda form: print(1 / 0))
    load_data("digits8", on_shape=seen.append)
    assert seen[1].shape == (1, 8, 8) and seen[1].label_names == tuple("0123456789")


@pytest.mark.parametrize("content", ["lonely", "split", "shapes"])
def test_old_runs_read_their_data_unchanged(tmp_path: Path, content: str) -> None:
    """Earlier versions cropped, kept the original size, and used the whole path of folders as labels."""
    files = {"lonely": LONELY, "split": SPLIT, "shapes": {f"a/im{k}.png": png(k, 45, 11 + 60 * (k % 2)) for k in range(6)}}
    root = str(write(tmp_path / "set", files[content]))
    then = load_data(
        root, fit="crop", labels="none" if content == "shapes" else "folder", size="11" if content == "shapes" else None
    )
    for data, options in ((then, {}), (then, {"labels": "auto"}), (load_data(root), None)):
        reading = reading_options({}, data) if options is None else options
        known = DataConfig(
            name="set", source=root, count=len(data), shape=data.shape, labels=data.label_names, reading=reading,
            label_counts=tuple(data.label_counts()), fingerprint=data.fingerprint(),
        )  # fmt: skip
        assert load_source_data(known).label_names == data.label_names
    assert load_data(root).fingerprint() != then.fingerprint()


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = pixels(load_data(str(write(tmp_path, {"a.png": packed(Image.fromarray(board))})), size="8"))
    assert small.float().sub(127.5).abs().max() < 12  # grey, not a sampled pattern


@pytest.mark.parametrize(
    ("sizes", "wanted", "expected"),
    [
        ([(28, 28)] * 2, None, (28, 28)), ([(48, 64)] * 2, None, (48, 64)), ([(100, 80)] * 2, None, (64, 64)),
        ([(20, 30), (33, 21)], None, (20, 20)), ([(100, 300), (90, 70)], None, (64, 64)), ([(100, 80)], "32", (32, 32)),
        ([(100, 80)], "64x48", (64, 48)), ([(45, 45)] * 2, None, (44, 44)), ([(50, 7)] * 2, None, (48, 6)),
        ([(17, 33), (17, 34)], None, (16, 16)), ([(1, 3)], None, (2, 2)), ([(10, 6)], None, (10, 6)),
    ],
)  # fmt: skip
def test_sizes(tmp_path: Path, sizes: list[tuple[int, int]], wanted: str | None, expected: tuple[int, int]) -> None:
    write(tmp_path, {f"im{k}.png": png(k, *size) for k, size in enumerate(sizes)})
    data = load_data(str(tmp_path), size=wanted)
    assert data.shape == (3, *expected)
    own = len(set(sizes)) == 1 and expected == sizes[0]
    assert any("are resized to" in note for note in data.notes) == (wanted is None and not own)


@pytest.mark.parametrize("size", ["", "0", "x", "12x", "-4", "3.5", "99999", "12x12x12", "8x0"])
def test_bad_sizes_are_refused(size: str) -> None:
    with pytest.raises(UserError, match="size"):
        load_data("digits", size=size)


def test_hidden_files_links_and_loops(tmp_path: Path) -> None:
    root = write(
        tmp_path / "root", {"a.png": png(1), "sub/b.png": png(2), ".c.png": png(3), "__MACOSX/._a.png": b"x", "t.txt": b""}
    )
    (root / "sub" / "up").symlink_to(root)
    (root / "again").symlink_to(root / "sub")
    (root / "out").symlink_to(write(tmp_path / "elsewhere", {"d.png": png(4)}))
    data = load_data(str(root), labels="none")
    assert len(data) == 3 and data.report["broken"] == [] and data.report["duplicates"] == 0
    assert any("skipped (.txt)" in note for note in data.notes)


def test_unsafe_zip_entries_are_skipped(tmp_path: Path) -> None:
    content = {"top/cat/1.png": png(1), "top/dog/2.png": png(2), "top/.hidden.png": png(), "__MACOSX/top/._1.png": b"x"}
    content |= {f"top/{kind}/{k}.png": png(k) for kind in ("cat", "dog") for k in range(3, 5)}
    data = load_data(str(zipped(tmp_path / "fine.zip", content)))
    assert data.label_names == ("cat", "dog") and data.report["broken"] == [] and data.name == "fine"
    tricks = {"../../evil.png": png(3), "/abs.png": png(4), "C:/win.png": png(5), "a\\..\\..\\b.png": png(6)}
    path = zipped(tmp_path / "evil.zip", {"ok.png": png(1)} | tricks | {"zeros.png": b"\0" * 2**21})
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr(zipfile.ZipInfo("lzma.png"), png(7), zipfile.ZIP_LZMA)
    before = sorted(tmp_path.rglob("*"))
    data = load_data(str(path))
    assert len(data) == 1 and sorted(tmp_path.rglob("*")) == before
    reasons = broken(data)
    assert sum("unsafe name" in why for why in reasons.values()) == 4
    assert "link" in reasons["link.png"] and "bomb" in reasons["zeros.png"] and "compression" in reasons["lzma.png"]
    with pytest.raises(UserError, match="unsafe name"):
        load_data(str(path), strict=True)


def test_damaged_zip_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "a.zip", {"a.png": png(1, 30, 30), "b.png": png(2, 30, 30)})
    whole = bytearray(path.read_bytes())
    whole[200] ^= 255
    path.write_bytes(whole)
    data = load_data(str(path))
    assert len(data) == 1 and "decompressed" in broken(data)["a.png"]
    monkeypatch.setattr(sources, "ZIP_LIMIT", 100)
    with pytest.raises(UserError, match="over the limit"):
        load_data(str(path))
    path.write_bytes(whole[:300])
    with pytest.raises(UserError, match="cannot be read as a zip"):
        load_data(str(path))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_images_and_archives_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["a.png", "a.jpg", "a.gif", "a.tif", "a.webp", "a.zip"]))
    kinds = {"a.jpg": "JPEG", "a.gif": "GIF", "a.tif": "TIFF", "a.webp": "WEBP"}
    if name == "a.zip":
        content = bytearray(zipped(tmp_path / "w.zip", {"a.png": png()}).read_bytes())
        (tmp_path / "w.zip").unlink()
    else:
        content = bytearray(packed(Image.fromarray(noise(9, 9)), kinds.get(name, "PNG")))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    for old in root.iterdir():
        old.unlink()
    (root / name).write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        assert len(load_data(str(root / name if name == "a.zip" else root), size="8")) == 1
    except UserError as error:
        assert "\n" not in str(error)


BY_FOLDER = {f"{kind}/{k}.png": png(k) for k, kind in enumerate(["10", "2", "2", "a/b"] * 3)}
SPLIT = {f"{part}/{kind}/{k}.png": png(k) for k, kind in enumerate("abc" * 3) for part in ("Train", "test")}
PLAIN_SPLIT = {f"{part}/{k}.png": png(k) for k in range(4) for part in ("train", "test")}
DEEP = {f"{kind}/{k}/im.png": png(k) for k, kind in enumerate(["bird", "fish", "fish"] * 3)}
FACES = {f"person{k}/{mood}/im.png": png(k) for k in range(5) for mood in ("glad", "sad")}
LONELY = {f"{k}/im.png": png(k) for k in range(5)}
BY_NAME = {name: png(k) for k, name in enumerate(["7.0123.png", "7.0124.png", "10.1.png", "10.2.png"])}
BY_WORD = {
    name: png(k) for k, name in enumerate(["cat_12.png", "cat-13.png", "cat (3).png", "sea_lion_4.png", "sea_lion_5.png"])
}
FLAT = {f"im{k}.png": png(k) for k in range(4)}
CSV = b"file_name,label\nim0.png,yes\nim1.png,no\nim2.png,yes\nim3.png,no\n"
ROWS = [{"file_name": f"im{k}.png", "text": ["yes", "no"][k % 2]} for k in range(4)]
JSONL = "\n".join(map(json.dumps, ROWS)).encode()


@pytest.mark.parametrize(
    ("how", "content", "names", "labels", "origin"),
    [
        ("auto", BY_FOLDER, ("2", "10", "a/b"), [1] * 3 + [0] * 6 + [2] * 3, "the folders"),
        ("folder", BY_FOLDER, ("2", "10", "a/b"), [1] * 3 + [0] * 6 + [2] * 3, "the folders"),
        ("auto", SPLIT, ("a", "b", "c"), [0, 0, 0, 1, 1, 1, 2, 2, 2] * 2, "the last level of folders"),
        ("auto", PLAIN_SPLIT, (), None, ""),
        ("folder", PLAIN_SPLIT, ("test", "train"), [0] * 4 + [1] * 4, "the folders"),
        ("auto", DEEP, ("bird", "fish"), [0] * 3 + [1] * 6, "the first level of folders"),
        ("top-folder", DEEP, ("bird", "fish"), [0] * 3 + [1] * 6, "the first level of folders"),
        ("auto", FACES, ("glad", "sad"), [0, 1] * 5, "the last level of folders"),
        ("last-folder", FACES, ("glad", "sad"), [0, 1] * 5, "the last level of folders"),
        ("auto", LONELY, (), None, ""),
        ("folder", LONELY, ("0", "1", "2", "3", "4"), [0, 1, 2, 3, 4], "the folders"),
        ("auto", BY_NAME, ("7", "10"), [1, 1, 0, 0], "the file names"),
        ("name", BY_NAME, ("7", "10"), [1, 1, 0, 0], "the file names"),
        ("auto", BY_WORD, ("cat", "sea_lion"), [0, 0, 0, 1, 1], "the file names"),
        ("auto", FLAT | {"metadata.csv": CSV}, ("no", "yes"), [1, 0, 1, 0], "metadata.csv"),
        ("csv", FLAT | {"metadata.csv": CSV}, ("no", "yes"), [1, 0, 1, 0], "metadata.csv"),
        ("auto", FLAT | {"metadata.jsonl": JSONL}, ("no", "yes"), [1, 0, 1, 0], "metadata.jsonl"),
        ("jsonl", FLAT | {"metadata.jsonl": JSONL}, ("no", "yes"), [1, 0, 1, 0], "metadata.jsonl"),
        ("auto", FLAT, (), None, ""),
        ("none", BY_FOLDER, (), None, ""),
        ("auto", {f"{k}.png": png(k) for k in range(3)}, (), None, ""),
        ("auto", {f"{w}_{k}.png": png(k) for w in ("IMG", "DSC") for k in range(3)}, (), None, ""),
        ("auto", {f"2024-0{m}-0{d}.png": png(d) for m in (1, 2) for d in (1, 2)}, (), None, ""),
        ("auto", {"cat_1.png": png(1), "cat_2.png": png(2), "dog_1.png": png(3)}, (), None, ""),
        ("auto", {"loose.png": png(1), "sub/a.png": png(2)}, (), None, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_zip", [False, True])
def test_labels(
    tmp_path: Path,
    how: str,
    content: dict[str, bytes],
    names: tuple[str, ...],
    labels: list[int] | None,
    origin: str,
    as_zip: bool,
) -> None:
    root = zipped(tmp_path / "set.zip", content) if as_zip else write(tmp_path / "set", content)
    data = load_data(str(root), labels=how)
    assert data.label_names == names and (None if data.labels is None else data.labels.tolist()) == labels
    assert data.report["classes"] == dict(zip(names, data.label_counts(), strict=True))
    assert not origin or f"{len(names)} classes from {origin}" in data.notes


def test_tiny_classes_are_noted(tmp_path: Path) -> None:
    lonely = str(write(tmp_path / "lonely", LONELY))
    assert any("folders of one or two, 5 folders in all" in n and "--labels folder" in n for n in load_data(lonely).notes)
    assert any("5 of 5 classes have only one or two" in note for note in load_data(lonely, labels="folder").notes)
    many = {f"a/{k}.png": png(k) for k in range(9)} | {f"{k}/im.png": png(k) for k in range(3)}
    data = load_data(str(write(tmp_path / "many", many)))
    assert len(data.label_names) == 4 and any("3 of 4 classes have only one or two" in note for note in data.notes)
    split = load_data(str(write(tmp_path / "split", SPLIT)))
    assert (
        any("Train and test are read together" in note for note in split.notes) and split.report["labels_by"] == "last-folder"
    )


def test_metadata_columns_are_labels_by_name(tmp_path: Path) -> None:
    rows = "file_name,Kind,text,age\n" + "".join(f"im{k}.png,{'xy'[k % 2]},a picture {k},{k}\n" for k in range(4))
    write(tmp_path, FLAT | {"metadata.csv": rows.encode()})
    data = load_data(str(tmp_path))
    assert any("columns age and kind of the metadata are not used; --labels kind" in note for note in data.notes)
    scanned = load_data(str(tmp_path), condition_columns="age")
    assert any("the column kind of the metadata is not used; --labels kind" in note for note in scanned.notes)
    data = load_data(str(tmp_path), labels="Kind")
    assert (
        data.label_names == ("x", "y") and data.report["labels_by"] == "kind" and not any("not used" in n for n in data.notes)
    )
    assert "2 classes from the column kind of metadata.csv" in data.notes
    with pytest.raises(UserError, match=r"a knid column; it has age, file_name, kind, text"):
        load_data(str(tmp_path), labels="knid")
    write(tmp_path, {"metadata.csv": rows.replace(",text", ",words").encode()})
    data = load_data(str(tmp_path))
    assert any("it has age, file_name, kind, words; --labels selects another" in note for note in data.notes)


def test_unsupported_formats_are_named(tmp_path: Path) -> None:
    write(tmp_path, {f"IMG_{k}.HEIC": b"x" for k in range(5)} | {"a.xmp": b""})
    with pytest.raises(
        UserError, match=r"0 images found.*it has 5 \.heic, which cannot be read: convert them to \.jpg or \.png"
    ):
        load_data(str(tmp_path))


def test_unsupported_images_are_not_a_folder_of_texts(tmp_path: Path) -> None:
    write(tmp_path, {f"IMG_{k}.HEIC": b"x" for k in range(3)} | {"read me.txt": b"holidays"})
    with pytest.raises(UserError, match=r"it has 3 \.heic, which cannot be read"):
        load_data(str(tmp_path))
    write(tmp_path, {f"IMG_{k}.txt": b"a caption" for k in range(2)})  # one beside each image, like captions
    with pytest.raises(UserError, match=r"it has 3 \.heic, which cannot be read"):
        load_data(str(tmp_path))
    write(tmp_path, {f"story {k}.txt": b"Once upon a time there was a folder of texts. " * 30 for k in range(9)})
    assert load_data(str(tmp_path)).kind == "text"


def test_metadata_with_gaps(tmp_path: Path) -> None:
    write(tmp_path, FLAT | {"metadata.csv": CSV.replace(b"im3.png,no\n", b"gone.png,no\n")})
    data = load_data(str(tmp_path))
    assert len(data) == 3 and broken(data) == {"im3.png": "no row in metadata.csv"}
    assert any("1 rows of metadata.csv name images that are missing" in note for note in data.notes)
    with pytest.raises(UserError, match=r"im3\.png: no row"):
        load_data(str(tmp_path), strict=True)


@pytest.mark.parametrize(
    ("how", "content", "match"),
    [
        ("csv", {}, "no metadata.csv"), ("jsonl", {}, "no metadata.jsonl"), ("folder", {}, "one folder"),
        ("name", {}, "file names"), ("fodler", {}, "did you mean 'folder'"),
        ("csv", {"metadata.csv": b"a,b\n1,2\n"}, "needs a file_name column"),
        ("csv", {"metadata.csv": b"\xff\xfe\x00"}, "cannot be read"), ("csv", {"metadata.csv": b""}, "needs a file_name"),
        ("csv", {"metadata.csv": b"file_name,label\nq.png,1\n"}, "no row of metadata.csv"),
        ("jsonl", {"metadata.jsonl": b"{}\n[1]\n"}, "line 2"), ("jsonl", {"metadata.jsonl": b"[" * 10**5}, "line 1"),
    ],
)  # fmt: skip
def test_impossible_labels_are_refused(tmp_path: Path, how: str, content: dict[str, bytes], match: str) -> None:
    with pytest.raises(UserError, match=match):
        load_data(str(write(tmp_path, FLAT | content)), labels=how)
    assert len(load_data(str(tmp_path))) == 4  # auto continues without labels, with a note
    assert how in LABELS or how == "fodler"


def test_duplicates_are_counted_and_progress_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {f"im{k}.png": png(k % 3) for k in range(7)})
    scanned: list[tuple[str, int, int]] = []
    data = load_data(str(tmp_path), on_progress=lambda *news: scanned.append(news))
    assert data.report["duplicates"] == 4 and any("4 images are exact copies" in note for note in data.notes)
    assert scanned == [("reading headers", 7, 7), ("reading images", 7, 7)] and data.report["range"] == [0, 255]


def test_lazy_equals_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {f"{'ab'[k % 2]}/{k}.png": png(k, 9 + k % 3, 12) for k in range(40)}
    write(tmp_path, content | {"a/bad.png": b"no"})
    near = load_data(str(tmp_path), size="8x10")
    monkeypatch.setattr(memory_limits, "MEMORY_LIMIT", 1000)
    monkeypatch.setattr(memory_limits, "DISK_SHARE", 0)
    far = load_data(str(tmp_path), size="8x10")
    assert isinstance(far.x, FileImages) and far.kind == "images" and far.shape == near.shape == (3, 8, 10) and len(far) == 40
    assert far.report["broken"] == near.report["broken"] and far.x.shape == near.x.shape
    index = torch.tensor([5, 0, 39, 5])
    for one, other in zip(far.batch(index), near.batch(index), strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
    for one, other in zip(far.split(3), near.split(3), strict=True):
        whole = torch.arange(len(one))
        assert torch.equal(one.batch(whole)[0], other.batch(whole)[0]) and one.label_counts() == other.label_counts()
    again = load_data(str(tmp_path), size="8x10")
    assert far.fingerprint() == again.fingerprint() != far.take(index).fingerprint()
    assert far.fingerprint() != load_data(str(tmp_path), size="8x10", fit="pad").fingerprint()
    (tmp_path / "a" / "0.png").write_bytes(png(99, 9, 12))
    assert load_data(str(tmp_path), size="8x10").fingerprint() != far.fingerprint()
    (tmp_path / "a" / "0.png").unlink()
    with pytest.raises(UserError, match=r"a/0\.png was readable"):
        far.batch(torch.tensor([0]))


def test_large_datasets_use_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{'ab'[k % 2]}/{k}.png": png(k, 9 + k % 3, 12) for k in range(40)} | {"a/bad.png": b"no"})
    near = load_data(str(tmp_path), size="8x10")
    monkeypatch.setattr(memory_limits, "MEMORY_LIMIT", 1000)
    far = load_data(str(tmp_path), size="8x10")
    assert isinstance(far.x, FileImages) and far.x.store is not None and "temporary file" in " ".join(far.notes)
    monkeypatch.setattr(FileImages, "_read", None)  # nothing is decoded again
    for one, other in zip(far.split(3), near.split(3), strict=True):
        whole = torch.arange(len(one))
        assert torch.equal(one.batch(whole)[0], other.batch(whole)[0]) and one.label_counts() == other.label_counts()
    chosen = far.take(torch.tensor([7, 3])).take(torch.tensor([1]))
    assert torch.equal(chosen.batch(torch.tensor([0]))[0], near.batch(torch.tensor([3]))[0])


def test_lazy_grey_images_stored_in_colour_are_grey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"im{k}.png": packed(Image.fromarray(noise(8, 8, 1, k)).convert("RGB")) for k in range(5)})
    near = load_data(str(tmp_path))
    monkeypatch.setattr(memory_limits, "MEMORY_LIMIT", 10)
    monkeypatch.setattr(memory_limits, "DISK_SHARE", 0)
    far = load_data(str(zipped(tmp_path / "a.zip", {p.name: p.read_bytes() for p in sorted(tmp_path.glob("*.png"))})))
    assert isinstance(far.x, FileImages) and far.shape == near.shape == (1, 8, 8)
    assert torch.equal(far.x.take(torch.arange(5)), pixels(near)) and any("stored in colour" in note for note in far.notes)


def test_scans_hold_only_fitted_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 files of 25 kB have 75 MB; the scan may hold only fitted pixels and little per file."""
    content = [packed(Image.fromarray(noise(96, 96, 3, k)), "BMP") for k in range(4)]
    for k in range(3000):
        (tmp_path / f"im{k}.bmp").write_bytes(content[k % 4])
    monkeypatch.setattr(memory_limits, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(memory_limits, "DISK_SHARE", 0)
    tracemalloc.start()
    data = load_data(str(tmp_path), size="16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == 3000 and peak < 25e6, peak


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 6, 1), (7, 100, 80, 3), (1, 4, 4, 4)])
@pytest.mark.parametrize("titled", [False, True])
def test_contact_sheet(shape: tuple[int, ...], titled: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    sheet = contact_sheet(images, [f"title {k}" for k in range(len(images))] if titled else None, 3)
    assert sheet.dtype == np.uint8 and sheet.shape[2] == 3 and (sheet[:2] == 255).all() and (sheet[:, :2] == 255).all()
    factor = enlargement(*shape[1:3], min(3, len(images)))
    height, width = shape[1] * factor, shape[2] * factor
    assert sheet.shape[1] == 2 + min(3, len(images)) * (width + 2)
    if shape[-1] != 4 or len(shape) == 3:
        first = sheet[2 : 2 + height : factor, 2 : 2 + width : factor]
        assert np.array_equal(first, np.broadcast_to(images[0].reshape(*shape[1:3], -1), first.shape))
    strip = sheet[2 + height : 2 + height + 13]
    assert not titled or (strip < 128).any()
