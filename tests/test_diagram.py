"""The table of layers is the network's own, and the picture is readable."""

import io
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch
from rich.console import Console

import model
from a3c.config import NetworkConfig
from a3c.net import layers
from a3c.net.distributions import for_space
from a3c.net.network import Network, NetworkOutput
from a3c.plot import diagram
from a3c.plot.diagram import LayerRow
from examples import own_network
from tests import refused
from tests.full_disks import little_room

ATARI = Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = Box(-1.0, 1.0, (4,), np.float32)
BOX = Box(-1.0, 1.0, (2,), np.float32)


def table(space: Box, actions: Any = BOX, build: Any = model.build, **more: Any) -> list[LayerRow]:
    return diagram.layer_table(build(space, actions, NetworkConfig(**more)), space)


def sources(rows: list[LayerRow]) -> dict[str, tuple[str, ...]]:
    return {row.name: row.sources for row in rows}


def test_sources_follow_the_graph() -> None:
    residual = sources(table(VECTOR, Discrete(2), own_network.build))
    assert (residual["block1"], residual["block2_in"]) == (("input", "block1_out"), ("block1",))
    assert sources(table(VECTOR, separate_value=True, network="mlp-lstm", hidden_sizes=(3,))) == {
        "observation": (),
        "policy_trunk/hidden1": ("observation",),
        "policy_trunk/lstm": ("policy_trunk/hidden1",),
        "value_trunk/hidden1": ("observation",),
        "value_trunk/lstm": ("value_trunk/hidden1",),
        "policy": ("policy_trunk/lstm",),
        "policy/log_deviation": (),
        "value": ("value_trunk/lstm",),
    }


def test_variables_made_by_hand_get_a_row() -> None:
    def build(space: Any, actions: Any, config: NetworkConfig) -> Network:
        policy = for_space(actions, config)

        def forward(observations: Any, state: Any, starts: Any) -> NetworkOutput:
            with tf.compat.v1.variable_scope("by_hand"):
                scale = layers.variable("scale", [4], tf.compat.v1.ones_initializer())
            x = observations * scale
            return NetworkOutput(policy.head(x), layers.dense(x, 1, "value")[..., 0], state)

        return Network(forward, policy)

    rows = table(VECTOR, Discrete(2), build)
    assert rows[-1] == LayerRow("by_hand", "variables", (), 4, ())
    assert diagram.total_parameters(rows) == 4 + 5 * 2 + 5
    assert sources(rows)["policy"] == ("observation",)
    diagram.figure(rows, "by hand", "")


def test_the_printed_table_names_layers_shapes_and_the_total() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=False)
    diagram.show(table(ATARI, Discrete(6)), "a3c-ff on [brackets]", console)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a3c-ff on [brackets]"
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert ["conv1", "conv 8x8/4, ReLU", "20x20x16", "4,112"] in cells
    assert ["total", "", "", "677,943"] in cells


TWO_TRUNKS = {"separate_value": True}
PICTURES: dict[str, tuple[Box, Any, Any, dict[str, Any]]] = {
    "a3c-ff": (ATARI, Discrete(6), model.build, {"network": "a3c-ff"}),
    "nature, two trunks": (ATARI, Discrete(18), model.build, TWO_TRUNKS | {"network": "nature"}),
    "universe": (ATARI, Discrete(6), model.build, {"network": "universe"}),
    "mlp": (VECTOR, BOX, model.build, {"hidden_sizes": (1,)}),
    "mlp-lstm, two trunks": (VECTOR, BOX, model.build, TWO_TRUNKS | {"network": "mlp-lstm"}),
    "three heads": (VECTOR, BOX, model.build, {"gaussian_deviation": "state-dependent"}),
    "residual": (VECTOR, BOX, own_network.build, {}),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_label_is_in_a_box_of_its_own_and_every_source_has_an_arrow(name: str) -> None:
    space, actions, build, settings = PICTURES[name]
    rows = table(space, actions, build, **settings)
    picture = diagram.figure(rows, f"{name} on ALE/Pong-v5", "a subtitle of some length")
    renderer = FigureCanvasAgg(picture).get_renderer()
    (axes,) = picture.axes
    texts = [t.get_window_extent(renderer) for t in (*picture.texts, *axes.texts)]
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    boxes = [p.get_window_extent(renderer) for p in axes.patches if p not in arrows]
    assert {text.get_text() for text in axes.texts} >= {row.name for row in rows}
    # Lines of one label stand close: allow them to touch.
    shrunk = [text.padded(-1.5) for text in texts]
    assert not any(one.overlaps(other) for one, other in combinations([*shrunk], 2))
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for text in texts[2:]:  # the first two are the heading
        assert sum(box.x0 < text.x0 < text.x1 < box.x1 for box in boxes if box.overlaps(text)) == 1
    page = axes.get_window_extent(renderer)
    assert all(page.containsx(x) for box in texts + boxes for x in (box.x0, box.x1))
    assert all(page.containsy(y) for box in texts + boxes for y in (box.y0, box.y1))
    assert len(arrows) == sum(len(row.sources) for row in rows)


def test_a_very_deep_network_makes_a_file_that_can_be_opened(tmp_path: Path) -> None:
    rows = [LayerRow("observation", "input", (4,), 0, ())]
    for number in range(200):
        rows.append(LayerRow(f"hidden{number}", "dense, tanh", (64,), 4160, (rows[-1].name,)))
    path = tmp_path / "deep.png"
    diagram.draw(rows, "deep", "", path)
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert int.from_bytes(header[16:20]) <= 30_000  # pixels across
    said = r"deep.png/net.png can't be written .* --output"
    refused(said, diagram.draw, rows[:2], "title", "", path / "net.png")


def test_on_a_full_disk_the_earlier_picture_stays(tmp_path: Path) -> None:
    rows, path = [LayerRow("observation", "input", (4,), 0, ())], tmp_path / "net.png"
    diagram.draw(rows, "title", "", path)
    drawn = path.read_bytes()
    with little_room(100):
        refused(r"net.png can't be written \(File too large\)", diagram.draw, rows, "T", "", path)
    assert ([*tmp_path.iterdir()], path.read_bytes()) == ([path], drawn)
    assert path.stat().st_mode & 0o44, "others may read it"
