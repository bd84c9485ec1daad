"""Pictures and films."""

from __future__ import annotations

import io
import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
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
SHEET_SIDE, SHEET_WIDTH, SHEET_GAP = 64, 512, 2  # pixels: minimum size of enlarged images, target width of small sheets, gap
MAX_ENLARGEMENT = 32
TITLE_LINES = 2  # maximum lines below an image
HEADING, MIN_HEADING_WIDTH = 12, 112  # pixels: font size of a heading, and minimum width of an image with a heading
SHEET_PIXELS, MAX_ON_SHEET = 10**8, 10_000  # per sheet
FILM_FRAMES, FILM_BYTES, MAX_FILM_POINTS = 60, 2**30, 20_000  # per film
LEGEND = 12  # maximum number of labels
CLOUDS = {"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.92, "wspace": 0.02}  # margins of scatter plots side by side

PICTURE_SUFFIXES = (".png", ".jpg", ".pdf", ".svg")

Film = Sequence[tuple[float, np.ndarray, np.ndarray]]  # (t, x, x0) for each frame


def matplotlib_text(text: str) -> str:
    """Return text for matplotlib's default font: missing glyphs are spelled out and dollar signs are escaped."""
    return lettering.replace_missing_glyphs(text).replace("$", r"\$")


def set_title(axes: Axes, text: str, size: float = 10, width: int | None = None) -> None:
    """Set the title of axes in a font with its glyphs, in at most two lines of `width` pixels if a width is given."""
    from matplotlib.font_manager import FontProperties

    line, font = lettering.drawable(text)
    lines = [line] if width is None else lettering.wrap(line, width, _pixel_size(size), TITLE_LINES)
    axes.set_title("\n".join(lines).replace("$", r"\$"), fontproperties=FontProperties(fname=font, size=size), color=INK)


def set_suptitle(fig: Figure, text: str, size: float = 9, colour: str = INK) -> None:
    """Set the title of a figure in a font with its glyphs, truncated to the figure's width."""
    from matplotlib.font_manager import FontProperties

    line = lettering.shorten(text, round(fig.get_figwidth() * DPI) - 8, _pixel_size(size))
    font = FontProperties(fname=lettering.drawable(line)[1], size=size)
    fig.suptitle(line.replace("$", r"\$"), fontproperties=font, color=colour)


def _pixel_size(points: float) -> int:
    return round(points * DPI / 72)


def figure(width: float, height: float, margins: Mapping[str, float] | None = None) -> Figure:
    """Return an empty figure of this size in inches, without a display.

    margins: keywords of `subplots_adjust`; without them a constrained layout is computed, which takes three times as long.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), dpi=DPI, layout=None if margins else "constrained", facecolor="white")
    if margins:
        fig.subplots_adjust(**margins)
    FigureCanvasAgg(fig)
    return fig


def pixels(fig: Figure) -> np.ndarray:
    """Return a figure as (H, W, 3) uint8; the layout is computed once, so that all frames of a film have equal margins."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = fig.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    fig.set_layout_engine("none")
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png_bytes(fig: Figure) -> bytes:
    """Return a figure as PNG bytes."""
    buffer = io.BytesIO()
    _write_png(fig, buffer)
    return buffer.getvalue()


def _write_png(fig: Figure, file: BinaryIO | Path) -> None:
    """Write a figure as PNG; `savefig` would draw it twice to compute the layout."""
    Image.fromarray(pixels(fig)).save(file, format="png", dpi=(DPI, DPI))


def check_picture(path: Path) -> Path:
    """Return a path to a figure; raise an error if its suffix is unknown or its folder is not writable."""
    if path.suffix.lower() not in PICTURE_SUFFIXES or path.is_dir():
        raise UserError(f"cannot draw {path}: choose a file name that ends in {', '.join(PICTURE_SUFFIXES)}")
    check_folder(path.parent)
    return path


def save(fig: Figure, path: Path) -> None:
    """Write a figure to a file in the format of its suffix."""
    kind = path.suffix[1:].lower()
    with atomic(path) as temporary:
        _write_png(fig, temporary) if kind == "png" else fig.savefig(temporary, format=kind)


def axis_limits(points: np.ndarray) -> tuple[float, float]:
    """Return limits for both axes that contain nearly all points with a margin.  points: (N, 2)."""
    low, high = np.quantile(points, [0.002, 0.998])
    margin = 0.1 * max(high - low, 1e-6)
    return float(low - margin), float(high + margin)


def square_axes(axes: Axes, limits: tuple[float, float], title: str = "") -> Axes:
    """Make the axes square and remove ticks."""
    axes.set(xlim=limits, ylim=limits, aspect="equal", xticks=[], yticks=[])
    set_title(axes, title)
    for side in axes.spines.values():
        side.set_color("#d5dbe1")
    return axes


def colours(labels: Sequence[str] | None, n: int) -> list[str]:
    """Return one colour per point: a single colour, or one per label."""
    if labels is None:
        return [ACCENT] * n
    names = sorted(set(labels))
    return [CYCLE[names.index(label) % len(CYCLE)] for label in labels]


def dots(axes: Axes, points: np.ndarray, colour: Any = ACCENT) -> Any:
    """Scatter points with a size that decreases with their number, in the first two coordinates."""
    size = float(np.clip(8000 / max(len(points), 1), 2, 20))
    first = points[:, 0]
    second = points[:, 1] if points.shape[1] > 1 else np.zeros_like(first)
    return axes.scatter(first, second, s=size, c=colour, alpha=0.6, linewidths=0)


def legend(axes: Axes, labels: Sequence[str] | None) -> None:
    """Add a legend of labels and colours, limited to the first labels."""
    names = sorted(set(labels or ()))
    for k, name in enumerate(names[:LEGEND]):
        axes.scatter([], [], s=20, c=CYCLE[k % len(CYCLE)], label=matplotlib_text(lettering.shorten(name, 120, 11)))
    if len(names) > LEGEND:
        axes.scatter([], [], s=0, label=f"and {len(names) - LEGEND:,} more")
    if names:
        axes.legend(fontsize=8, loc="upper right", framealpha=0.9)


def check_video(path: Path) -> None:
    """Refuse a video if ffmpeg is not installed."""
    if path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise UserError(
            f"cannot write {path}: .mp4 needs ffmpeg, pip install 'reverie[video]'; or choose a name that ends in .gif"
        )


def write_film(path: Path, frames: Iterable[np.ndarray], per_second: int | None = None, hold: float = 2.0) -> None:
    """Write frames, (H, W, 3) uint8, as .gif or .mp4; the last frame is held for `hold` seconds.

    per_second: default 15, down to 4 for films with few frames, so that they last three seconds.
    """
    import imageio.v3 as iio

    check_video(path)
    shown = list(frames)
    per_second = per_second or max(4, min(15, len(shown) // 3))
    height, width = shown[0].shape[:2]
    shown = [frame[: height - height % 2, : width - width % 2] for frame in shown]  # video codecs need even sides
    with atomic(path) as temporary:
        if path.suffix.lower() == ".gif":
            durations = [1000 / per_second] * (len(shown) - 1) + [1000 * hold]
            temporary.write_bytes(iio.imwrite("<bytes>", np.stack(shown), extension=".gif", duration=durations, loop=0))
        else:
            _write_video(temporary, np.stack(shown + shown[-1:] * round(hold * per_second)), per_second)


def _write_video(path: Path, frames: np.ndarray, per_second: int) -> None:
    """Write frames, (N, H, W, 3) uint8 with even sides, as H.264 in yuv420p; a failure raises OSError."""
    from imageio_ffmpeg import get_ffmpeg_exe

    _, height, width, _ = frames.shape
    input_options = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {per_second} -i -"
    output_options = "-an -vcodec libx264 -pix_fmt yuv420p -crf 10 -f mp4"
    command = [get_ffmpeg_exe(), "-y", "-v", "error", *input_options.split(), *output_options.split(), str(path.resolve())]
    done = subprocess.run(command, input=frames.tobytes(), capture_output=True)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].rpartition("] ")[2]
        raise OSError(message or f"the film was not finished, ffmpeg ended with code {done.returncode}")


def coloured(images: np.ndarray, factor: int = 1) -> np.ndarray:
    """Return images as (N, H, W, 3) on white, each pixel enlarged to a square of `factor` pixels.

    images: (N, H, W) or (N, H, W, C) uint8 with C = 1, 3 or 4.
    """
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.shape[-1] == 4:  # composited as in training
        pixels = to_bytes(over_white(pixels / 255))
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(factor, 1).repeat(factor, 2)


def channels_last(x: np.ndarray) -> np.ndarray:
    """Return data in the users' layout: points and series unchanged, images (N, C, H, W) as (N, H, W) or (N, H, W, C)."""
    if x.ndim in (2, 3):
        return x
    return x[:, 0] if x.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def over_white(image: np.ndarray) -> np.ndarray:
    """Composite RGBA values in [0, 1] over white: (..., 4) -> (..., 3)."""
    return np.asarray(1 + image[..., 3:] * (image[..., :3] - 1))


def enlargement(height: int, width: int, across: int) -> int:
    """Return the integer factor by which a sheet enlarges images: to about 64 pixels, or to a sheet of about 512 pixels."""
    factor = max(SHEET_SIDE // max(height, width, 1), SHEET_WIDTH // max(across * width, 1))
    return min(max(factor, 1), MAX_ENLARGEMENT)


def _across(count: int, columns: int | None, titles: Sequence[str] = ()) -> int:
    """Return the number of columns; titles that repeat periodically, such as labels in turn, share a column."""
    across, period = columns or int(np.ceil(np.sqrt(count))), len(set(titles))
    if columns is None and 1 < period <= MAX_PERIOD and period < count and all(a == b for a, b in zip(titles, titles[period:])):  # noqa: B905
        across = max(period, across // period * period)
    return min(across, max(count, 1))


MAX_PERIOD = 40  # titles side by side


def max_on_sheet(height: int, width: int) -> int:
    """Return the maximum number of images of this size on a sheet."""
    factor = enlargement(height, width, MAX_ON_SHEET)
    return max(1, min(MAX_ON_SHEET, SHEET_PIXELS // ((height * factor + SHEET_GAP) * (width * factor + SHEET_GAP))))


def contact_sheet(images: np.ndarray, titles: Sequence[str] | None = None, columns: int | None = None) -> np.ndarray:
    """Arrange images in a grid on white, small ones enlarged by an integer factor, with gaps of 2 pixels and titles below.

    images: (N, H, W) or (N, H, W, C) uint8 with C = 1, 3 or 4; returns (H', W', 3) uint8.
    """
    count, height, width = images.shape[:3]
    if count > (limit := max_on_sheet(height, width)):
        raise UserError(f"a sheet holds at most {limit:,} images of {height}x{width} pixels, got {count:,}; show fewer")
    across = _across(count, columns, titles or ())
    factor = enlargement(height, width, across)
    pixels = coloured(images, factor)
    size = min(max(width * factor // 12, 10), 13)
    captions = lettering.captions(titles or (), width * factor, size, TITLE_LINES)
    most_lines = max(map(len, captions), default=0)
    line = most_lines * (size + lettering.LEADING)
    cell_height, cell_width = height * factor + line + SHEET_GAP, width * factor + SHEET_GAP
    sheet = np.full((-(-count // across) * cell_height + SHEET_GAP, across * cell_width + SHEET_GAP, 3), 255, np.uint8)
    corners = [(SHEET_GAP + k // across * cell_height, SHEET_GAP + k % across * cell_width) for k in range(count)]
    for (top, left), big in zip(corners, pixels, strict=True):
        sheet[top : top + big.shape[0], left : left + big.shape[1]] = big
    for (top, left), caption in zip(corners if titles is not None else (), captions, strict=True):
        strip = lettering.strip(caption, width * factor, size)
        below = top + height * factor
        sheet[below : below + len(strip), left : left + width * factor] = strip
    return sheet


def with_heading(page: np.ndarray, text: str) -> np.ndarray:
    """Add a line of text above an image, which is widened if necessary.  page: (H, W, 3) uint8."""
    spare = max(0, MIN_HEADING_WIDTH - page.shape[1])
    page = np.pad(page, ((0, 0), (spare // 2, spare - spare // 2), (0, 0)), constant_values=255)
    width = page.shape[1]
    return np.concatenate([lettering.strip([lettering.shorten(text, width - 4, HEADING)], width, HEADING), page])


def to_bytes(image: np.ndarray) -> np.ndarray:
    """Return values in [0, 1] as uint8, any shape."""
    return np.asarray((np.clip(image, 0, 1) * 255).round(), dtype=np.uint8)


def max_film_samples(shape: tuple[int, ...]) -> int:
    """Return the maximum number of samples in a film, limited by the memory of its frames.  shape: (D,) or (C, H, W)."""
    if len(shape) < 3:
        return max(1, MAX_FILM_POINTS // math.prod(shape[:-1]))
    height, width = shape[1:]
    factor = enlargement(height, width, MAX_ON_SHEET)
    drawn = 2 * (height * factor + SHEET_GAP) * (width * factor + SHEET_GAP)  # pixels in both halves of a frame
    # x and x0 are float32; frames exist as a list and as one array
    bytes_per_sample = FILM_FRAMES * (2 * 4 * math.prod(shape) + 2 * 3 * drawn)
    return max(1, FILM_BYTES // bytes_per_sample)


def image_frames(
    film: Film, last: np.ndarray, titles: Sequence[str] | None = None, max_frames: int = FILM_FRAMES
) -> Iterator[np.ndarray]:
    """Yield (H, W, 3) frames with x_t on the left and, if it differs, the predicted x0 on the right."""
    has_estimate = any(not np.array_equal(x, x0) for _, x, x0 in film)

    def half(images: np.ndarray, heading: str) -> np.ndarray:
        return with_heading(contact_sheet(to_bytes(images), titles), heading)

    for k in np.unique(np.linspace(0, len(film) - 1, max_frames).round().astype(int)):
        t, x, x0 = film[k]
        halves = [half(x, f"x at t = {t:.3f}"), *([half(x0, "estimate of x0")] if has_estimate else [])]
        yield np.concatenate(halves, axis=1)
    yield np.concatenate([half(last, "the sample")] * (1 + has_estimate), axis=1)
