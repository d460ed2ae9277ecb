"""Write an agent as a SavedModel or as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from a3c.errors import UserError
from a3c.learn.agent import Agent


def write(agent: Agent, path: Path, greedy: bool) -> Path:
    """Write the acting part of an agent, its weights as constants; returns the path."""
    if path.exists():
        raise UserError(f"{path} is there already: give another name")
    graph, inputs, outputs = agent.frozen(greedy=greedy)
    if path.suffix == ".onnx":
        _write_onnx(graph, inputs, outputs, path)
        return path
    with graph.as_default(), tf.compat.v1.Session() as session:
        signatures = tf.compat.v1.saved_model.signature_def_utils
        signature = signatures.predict_signature_def(inputs, outputs)
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session, [tf.saved_model.SERVING], {"serving_default": signature}
        )
        builder.save()
    return path


def _write_onnx(graph: Any, inputs: dict[str, Any], outputs: dict[str, Any], path: Path) -> None:
    try:
        import tf2onnx
    except ImportError:
        raise UserError(
            f"{path} needs tf2onnx: run `.venv/bin/pip install tf2onnx onnx`, "
            "or give a folder for a SavedModel"
        ) from None
    model, _ = tf2onnx.convert.from_graph_def(
        graph.as_graph_def(),
        input_names=[tensor.name for tensor in inputs.values()],
        output_names=[tensor.name for tensor in outputs.values()],
        tensors_to_rename={t.name: name for name, t in [*inputs.items(), *outputs.items()]},
    )
    path.write_bytes(model.SerializeToString())
