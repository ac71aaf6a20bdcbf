"""A picture of a report: each lateness histogram, and the ratios to the baseline."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from toc.bench.report import BenchReport
from toc.errors import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60
INCHES = (9.0, 3.2)  # of each part


def check_plot(path: Path) -> None:
    """Before anything is measured. Raises SettingsError for what `plot` would say in the end."""
    if find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib: make setup-all")
    if not path.parent.is_dir():
        raise SettingsError(f"--plot: {path} cannot be written: there is no folder {path.parent}")


def plot(report: BenchReport, path: Path) -> None:
    """Writes a PNG. Raises SettingsError where the file cannot be written, or there is nothing to draw."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    with_baseline = [figure for figure in report.figures if figure.ratio is not None]
    parts = len(report.samples) + bool(with_baseline)
    if not parts:
        raise SettingsError("--plot: these cases have nothing to draw")
    picture = Figure(figsize=(INCHES[0], INCHES[1] * parts), layout="constrained")
    axes = list(picture.subplots(parts, squeeze=False)[:, 0])
    for title, late_ms in report.samples.items():
        _lateness(axes.pop(0), title, late_ms)
    if with_baseline:
        _ratios(axes.pop(0), report)
    try:
        picture.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise SettingsError(f"--plot: {path} cannot be written: {error.strerror}") from error


def _lateness(axes: Axes, title: str, late_ms: list[float]) -> None:
    axes.hist(late_ms, bins=BINS)
    axes.set_yscale("log")
    axes.set(title=title, xlabel="milliseconds", ylabel="jobs")


def _ratios(axes: Axes, report: BenchReport) -> None:
    rows = [(f"{f.case}: {f.what}", f.ratio) for f in report.figures if f.ratio is not None][::-1]
    middles = [ratio.middle for _, ratio in rows]
    errors = [
        [ratio.middle - ratio.low for _, ratio in rows],
        [ratio.high - ratio.middle for _, ratio in rows],
    ]
    axes.barh([name for name, _ in rows], middles, xerr=errors)
    axes.axvline(1.0, linestyle="--", linewidth=1)
    axes.set(title="Beside the baseline (1: as fast)", xlabel="ratio")
