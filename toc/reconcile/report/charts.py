"""The charts of the page, as SVG to be set into HTML. Where matplotlib is imported.

Colours are the page's own (CSS variables), so that they follow its light and dark scheme; text stays
text. The same figures give the same bytes.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

TEXT_CHARS_MAX = 28
WIDTH_IN = 4.8  # narrow enough to be read on a phone
_BAR_IN, _EDGES_IN = 0.27, 0.5

# Stand-ins, which no other part of a chart has; the page's variables take their places.
_INK, _GRID, _NOW, _BEFORE = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {
    _INK: "var(--ink)",
    _GRID: "var(--line)",
    _NOW: "var(--now)",
    _BEFORE: "var(--before)",
}
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "toc",
    "text.parse_math": False,  # names of types are no formulas
    "font.size": 9,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.constrained_layout.use": True,
}


def bar_chart(
    name: str,
    title: str,
    labels: Sequence[str],
    now: Sequence[int],
    before: Sequence[int] | None = None,
    legend: tuple[str, str] = ("", ""),
) -> str:
    """A bar for each label, the first on top; two where there is a `before`. `name`: for its ids."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        thick = 0.7 if before is None else 0.38
        shift = 0.0 if before is None else 0.2
        rows = range(len(labels))
        drawn = [axes.barh([y - shift for y in rows], now, thick, color=_NOW, label=legend[0])]
        if before is not None:
            other = axes.barh(
                [y + shift for y in rows], before, thick, color=_BEFORE, label=legend[1]
            )
            drawn.append(other)
            axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0
            )
        for some in drawn:
            axes.bar_label(some, fmt="{:,.0f}", padding=3)
        axes.set_yticks(list(rows), [_remove_missing_glyphs(label) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.margins(x=0.18)  # the numbers stand beside the bars
        axes.set_xlim(left=0)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0)

    row_in = _BAR_IN * (1.0 if before is None else 1.5)
    return _svg(name, title, _EDGES_IN + row_in * len(labels), draw)


def hour_chart(name: str, title: str, labels: Sequence[str], now: Sequence[int]) -> str:
    """A column for each label, in order; a label that is empty is not written."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.bar(range(len(labels)), now, 0.8, color=_NOW)
        written = [(x, label) for x, label in enumerate(labels) if label]
        axes.set_xticks(
            [x for x, _ in written], [_remove_missing_glyphs(label) for _, label in written]
        )
        axes.set_xlim(-0.6, max(len(labels), 6) - 0.4)
        _label_number_axis(axes)

    return _svg(name, title, 2.4, draw)


def shard_chart(name: str, title: str, now: Sequence[int]) -> str:
    """One figure for each shard, from 0 on."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        edges = [x - 0.5 for x in range(len(now) + 1)]
        axes.stairs(now, edges, fill=True, color=_NOW)  # one path, however many shards
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("shard")
        _in_whole_numbers(axes.xaxis)
        _label_number_axis(axes)

    return _svg(name, title, 2.4, draw)


def _label_number_axis(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    _in_whole_numbers(axes.yaxis)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)


def _in_whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as below

    axis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))


def _remove_missing_glyphs(label: str) -> str:
    """Without what the layout's font lacks."""
    label = label.encode("ascii", "backslashreplace").decode()
    return label if len(label) <= TEXT_CHARS_MAX else label[: TEXT_CHARS_MAX - 2] + ".."


def _svg(name: str, title: str, height_in: float, draw: Callable[[Figure], None]) -> str:
    # It has much to say about fonts when it is imported, none of it to a reader of reports.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl  # noqa: PLC0415 - takes most of a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()  # not those of a file of the user's
        mpl.rcParams.update(_RC)
        figure = Figure(figsize=(WIDTH_IN, height_in))
        draw(figure)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None})
    return _for_page(sink.getvalue(), name, title)


def _for_page(text: str, name: str, title: str) -> str:
    """Without namespaces, metadata and sizes; ids that no other chart has; the page's colours."""
    root = ET.fromstring(text)  # noqa: S314 - matplotlib's own, just made
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            element.set(key.rpartition("}")[2], _own_id(key.rpartition("}")[2], value, name))
    view = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": view, "role": "img", "aria-labelledby": f"{name}-title"})
    label = ET.Element("title", id=f"{name}-title")
    label.text = title
    root.insert(0, label)
    return ET.tostring(root, encoding="unicode")


def _own_id(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    if key == "style":
        value = re.sub(r"#0[1-4]0[1-4]0[1-4]", lambda m: _VARIABLES.get(m[0], m[0]), value)
    return value.replace("url(#", f"url(#{name}-")
