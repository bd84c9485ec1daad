"""Pictures and films."""

from __future__ import annotations

import io
import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from reverie.base.errors import UserError
from reverie.base.files import atomic, check_folder
from reverie.draw import lettering

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, ACCENT, WARM = lettering.INK, "#8a98a8", "#2f6fde", "#d9633a"
CYCLE = ("#2f6fde", "#d9633a", "#2a9d72", "#a04bc0", "#c9a227", "#3aa6b9", "#b03060", "#6b7280")

DPI = 100
SHEET_SIDE, SHEET_WIDTH, SHEET_GAP = 64, 512, 2  # pixels: images are enlarged to that side, and few of them to that width
MOST_ENLARGED = 32  # times: of sprites of 8 x 8 pixels four fill a sheet
TITLE_LINES = 2  # under an image, at most
HEADING, HEADED = 12, 112  # pixels: the size of letters above a picture, and how wide it is at least to have room for them
SHEET_PIXELS, MOST_ON_SHEET = 10**8, 10_000  # of one sheet
FILM_FRAMES, FILM_BYTES, MOST_FILMED_POINTS = 60, 2**30, 20_000  # of one film
LEGEND = 12  # labels in a legend, at most
CLOUDS = {"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.92, "wspace": 0.02}  # margins of clouds of points side by side

PICTURE_SUFFIXES = (".png", ".jpg", ".pdf", ".svg")

Film = Sequence[tuple[float, np.ndarray, np.ndarray]]  # (t, x, x0) for each frame


def plain(text: str) -> str:
    """Return text for matplotlib's usual font: letters it lacks are told, and dollars do not begin a formula."""
    return lettering.told(text).replace("$", r"\$")


def titled(axes: Axes, text: str, size: float = 10, width: int | None = None) -> None:
    """Write a title above the axes in a font that has its letters, where a width in pixels is given in at most two lines."""
    from matplotlib.font_manager import FontProperties

    words, font = lettering.drawable(text)
    lines = [words] if width is None else lettering.wrap(words, width, _pixels_high(size), TITLE_LINES)
    axes.set_title("\n".join(lines).replace("$", r"\$"), fontproperties=FontProperties(fname=font, size=size), color=INK)


def headline(made: Figure, text: str, size: float = 9, colour: str = INK) -> None:
    """Write a title above a whole figure in a font that has its letters; what is too long is cut off."""
    from matplotlib.font_manager import FontProperties

    words = lettering.shorten(text, round(made.get_figwidth() * DPI) - 8, _pixels_high(size))
    font = FontProperties(fname=lettering.drawable(words)[1], size=size)
    made.suptitle(words.replace("$", r"\$"), fontproperties=font, color=colour)


def _pixels_high(points: float) -> int:
    return round(points * DPI / 72)


def figure(width: float, height: float, margins: Mapping[str, float] | None = None) -> Figure:
    """Return an empty figure of this size in inches, drawn without a screen.

    margins: of the axes, as `subplots_adjust` takes them; without them they are fitted to what is drawn, at thrice the cost.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=DPI, layout=None if margins else "constrained", facecolor="white")
    if margins:
        made.subplots_adjust(**margins)
    FigureCanvasAgg(made)
    return made


def pixels(made: Figure) -> np.ndarray:
    """Return a figure as (H, W, 3) uint8; its margins are fitted once, so that the frames of a film have the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = made.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    made.set_layout_engine("none")
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png_bytes(made: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    _write_png(made, buffer)
    return buffer.getvalue()


def _write_png(made: Figure, file: BinaryIO | Path) -> None:
    """Write a figure as PNG; `savefig` would draw it twice, once only to fit its margins."""
    Image.fromarray(pixels(made)).save(file, format="png", dpi=(DPI, DPI))


def check_picture(path: Path) -> Path:
    """Refuse a picture whose name does not tell a known format, or that cannot be written there."""
    if path.suffix.lower() not in PICTURE_SUFFIXES or path.is_dir():
        raise UserError(f"cannot draw {path}: choose a file name that ends in {', '.join(PICTURE_SUFFIXES)}")
    check_folder(path.parent)
    return path


def save(made: Figure, path: Path) -> None:
    """Write a figure to a file, its format told by the suffix."""
    kind = path.suffix[1:].lower()
    with atomic(path) as aside:
        _write_png(made, aside) if kind == "png" else made.savefig(aside, format=kind)


def window(points: np.ndarray) -> tuple[float, float]:
    """Return limits, the same for both axes, that hold nearly all of the points with a margin.  points: (N, 2)."""
    low, high = np.quantile(points, [0.002, 0.998])
    margin = 0.1 * max(high - low, 1e-6)
    return float(low - margin), float(high + margin)


def plane(axes: Axes, limits: tuple[float, float], title: str = "") -> Axes:
    """Make the axes a square piece of the plane without ticks."""
    axes.set(xlim=limits, ylim=limits, aspect="equal", xticks=[], yticks=[])
    titled(axes, title)
    for side in axes.spines.values():
        side.set_color("#d5dbe1")
    return axes


def colours(labels: Sequence[str] | None, n: int) -> list[str]:
    """Return one colour per point: one for all, or one per label."""
    if labels is None:
        return [ACCENT] * n
    names = sorted(set(labels))
    return [CYCLE[names.index(label) % len(CYCLE)] for label in labels]


def dots(axes: Axes, points: np.ndarray, colour: Any = ACCENT) -> Any:
    """Scatter points, the smaller the more there are.  Of more than two coordinates the first two are shown."""
    size = float(np.clip(8000 / max(len(points), 1), 2, 20))
    first = points[:, 0]
    second = points[:, 1] if points.shape[1] > 1 else np.zeros_like(first)
    return axes.scatter(first, second, s=size, c=colour, alpha=0.6, linewidths=0)


def scatter(points: np.ndarray, labels: Sequence[str] | None = None, title: str = "") -> Figure:
    """Draw points in the plane.  points: (N, D)."""
    made = figure(5, 5)
    axes = plane(made.subplots(), window(points[:, :2]), title)
    dots(axes, points, colours(labels, len(points)))
    legend(axes, labels)
    return made


def legend(axes: Axes, labels: Sequence[str] | None) -> None:
    """Say which colour is which label, for the first of many."""
    names = sorted(set(labels or ()))
    for k, name in enumerate(names[:LEGEND]):
        axes.scatter([], [], s=20, c=CYCLE[k % len(CYCLE)], label=plain(lettering.shorten(name, 120, 11)))
    if len(names) > LEGEND:
        axes.scatter([], [], s=0, label=f"and {len(names) - LEGEND:,} more")
    if names:
        axes.legend(fontsize=8, loc="upper right", framealpha=0.9)


def point_frames(film: Film, labels: Sequence[str] | None, most: int = FILM_FRAMES) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames with x on the left and the x0 estimate on the right."""
    last = film[-1][2]
    limits = window(np.concatenate([film[0][1][:, :2], last[:, :2]]))
    made = figure(8, 4.3, CLOUDS)
    panels = [plane(axes, limits) for axes in made.subplots(1, 2)]
    clouds = [dots(axes, film[0][1], colours(labels, len(last))) for axes in panels]
    panels[1].set_title("estimate of x0", fontsize=10, color=INK)
    legend(panels[1], labels)
    for k in np.unique(np.linspace(0, len(film) - 1, most).round().astype(int)):
        t, *pair = film[k]
        panels[0].set_title(f"x at t = {t:.3f}", fontsize=10, color=INK)
        for cloud, points in zip(clouds, pair, strict=True):
            cloud.set_offsets(np.pad(points, ((0, 0), (0, 1)))[:, :2])
        yield pixels(made)
    panels[0].set_title("the sample", fontsize=10, color=INK)
    clouds[0].set_offsets(np.pad(last, ((0, 0), (0, 1)))[:, :2])
    yield pixels(made)


def write_film(path: Path, frames: Iterable[np.ndarray], per_second: int | None = None, hold: float = 2.0) -> None:
    """Write frames, (H, W, 3) uint8, as .gif or .mp4; the last one is held for some seconds.

    per_second: if not given, 15, or as few, down to 4, as a film of few frames needs to last three seconds.
    """
    import imageio.v3 as iio

    shown = list(frames)
    per_second = per_second or max(4, min(15, len(shown) // 3))
    height, width = shown[0].shape[:2]
    shown = [frame[: height - height % 2, : width - width % 2] for frame in shown]  # video wants even sides
    with atomic(path) as aside:
        if path.suffix.lower() == ".gif":
            durations = [1000 / per_second] * (len(shown) - 1) + [1000 * hold]
            aside.write_bytes(iio.imwrite("<bytes>", np.stack(shown), extension=".gif", duration=durations, loop=0))
        else:
            _write_video(aside, np.stack(shown + shown[-1:] * round(hold * per_second)), per_second)


def _write_video(path: Path, frames: np.ndarray, per_second: int) -> None:
    """Write frames, (N, H, W, 3) uint8 with even sides, as H.264 that any player shows; a failure is an OSError."""
    from imageio_ffmpeg import get_ffmpeg_exe

    _, height, width, _ = frames.shape
    given = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {per_second} -i -"
    wanted = "-an -vcodec libx264 -pix_fmt yuv420p -crf 10 -f mp4"
    words = [get_ffmpeg_exe(), "-y", "-v", "error", *given.split(), *wanted.split(), str(path.resolve())]
    done = subprocess.run(words, input=frames.tobytes(), capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].rpartition("] ")[2]
        raise OSError(said or f"the film was not finished, ffmpeg ended with code {done.returncode}")


def coloured(images: np.ndarray, factor: int = 1) -> np.ndarray:
    """Return images as (N, H, W, 3), each pixel a square of `factor` pixels; what is transparent lies over white.

    images: (N, H, W) or (N, H, W, C) uint8 with C = 1, 3 or 4.
    """
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.shape[-1] == 4:  # as when such images are trained on
        pixels = to_bytes(over_white(pixels / 255))
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(factor, 1).repeat(factor, 2)


def channels_last(x: np.ndarray) -> np.ndarray:
    """Return data as users have them: points and series as they are, images (N, C, H, W) as (N, H, W) or (N, H, W, C)."""
    if x.ndim in (2, 3):
        return x
    return x[:, 0] if x.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def over_white(image: np.ndarray) -> np.ndarray:
    """Return RGBA values in [0, 1] as RGB, with what is transparent laid over white: (..., 4) -> (..., 3)."""
    return np.asarray(1 + image[..., 3:] * (image[..., :3] - 1))


def enlargement(height: int, width: int, across: int) -> int:
    """Return the whole factor by which images on a sheet are enlarged: to about 64 pixels, and a few to fill about 512."""
    wanted = max(SHEET_SIDE // max(height, width, 1), SHEET_WIDTH // max(across * width, 1))
    return min(max(wanted, 1), MOST_ENLARGED)


def _across(count: int, columns: int | None) -> int:
    return min(columns or int(np.ceil(np.sqrt(count))), max(count, 1))


def most_on_sheet(height: int, width: int) -> int:
    """Return how many images of this size fit on a sheet that can still be drawn and opened."""
    factor = enlargement(height, width, MOST_ON_SHEET)
    return max(1, min(MOST_ON_SHEET, SHEET_PIXELS // ((height * factor + SHEET_GAP) * (width * factor + SHEET_GAP))))


def contact_sheet(images: np.ndarray, titles: Sequence[str] | None = None, columns: int | None = None) -> np.ndarray:
    """Lay images out on white, small ones enlarged by a whole factor, with gaps of 2 pixels and titles below.

    images: (N, H, W) or (N, H, W, C) uint8 with C = 1, 3 or 4; returns (H', W', 3) uint8.
    """
    count, height, width = images.shape[:3]
    if count > (most := most_on_sheet(height, width)):
        raise UserError(f"a sheet holds at most {most:,} images of {height}x{width} pixels, got {count:,}; show fewer")
    across = _across(count, columns)
    factor = enlargement(height, width, across)
    pixels = coloured(images, factor)
    size = min(max(width * factor // 12, 10), 13)
    captions = lettering.captions(titles or (), width * factor, size, TITLE_LINES)
    most_lines = max(map(len, captions), default=0)
    line = most_lines * (size + lettering.LEADING)
    tall, wide = height * factor + line + SHEET_GAP, width * factor + SHEET_GAP
    sheet = np.full((-(-count // across) * tall + SHEET_GAP, across * wide + SHEET_GAP, 3), 255, np.uint8)
    corners = [(SHEET_GAP + k // across * tall, SHEET_GAP + k % across * wide) for k in range(count)]
    for (top, left), big in zip(corners, pixels, strict=True):
        sheet[top : top + big.shape[0], left : left + big.shape[1]] = big
    for (top, left), words in zip(corners if titles is not None else (), captions, strict=True):
        strip = lettering.strip(words, width * factor, size)
        below = top + height * factor
        sheet[below : below + len(strip), left : left + width * factor] = strip
    return sheet


def headed(page: np.ndarray, text: str) -> np.ndarray:
    """Put a line of text above a picture, which is made wide enough for a few words.  page: (H, W, 3) uint8."""
    spare = max(0, HEADED - page.shape[1])
    page = np.pad(page, ((0, 0), (spare // 2, spare - spare // 2), (0, 0)), constant_values=255)
    width = page.shape[1]
    return np.concatenate([lettering.strip([lettering.shorten(text, width - 4, HEADING)], width, HEADING), page])


def to_bytes(image: np.ndarray) -> np.ndarray:
    """Return values in [0, 1] as uint8, any shape."""
    return np.asarray((np.clip(image, 0, 1) * 255).round(), dtype=np.uint8)


def most_filmed(shape: tuple[int, ...]) -> int:
    """Return how many data of this shape a film may show, by the memory that its frames take.  shape: (D,) or (C, H, W)."""
    if len(shape) < 3:
        return max(1, MOST_FILMED_POINTS // math.prod(shape[:-1]))
    height, width = shape[1:]
    factor = enlargement(height, width, MOST_ON_SHEET)
    drawn = 2 * (height * factor + SHEET_GAP) * (width * factor + SHEET_GAP)  # pixels in the two halves of a frame
    each = FILM_FRAMES * (2 * 4 * math.prod(shape) + 2 * 3 * drawn)  # x and x0 as float32; frames as they are and as one array
    return max(1, FILM_BYTES // each)


def image_frames(
    film: Film, last: np.ndarray, titles: Sequence[str] | None = None, most: int = FILM_FRAMES
) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames with the grid of x on the left and that of the x0 estimate on the right, where it is another."""
    other = any(not np.array_equal(x, x0) for _, x, x0 in film)

    def half(images: np.ndarray, heading: str) -> np.ndarray:
        return headed(contact_sheet(to_bytes(images), titles), heading)

    for k in np.unique(np.linspace(0, len(film) - 1, most).round().astype(int)):
        t, x, x0 = film[k]
        halves = [half(x, f"x at t = {t:.3f}"), *([half(x0, "estimate of x0")] if other else [])]
        yield np.concatenate(halves, axis=1)
    yield np.concatenate([half(last, "the sample")] * (1 + other), axis=1)
