"""Event files for TensorBoard: rows of metrics, the network's graph and its input images."""

import contextlib
import io
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box

from a3c.config import Config
from a3c.config.command_line import plain
from a3c.config.options import OPTIONS, flat
from a3c.net import observations

tf1 = tf.compat.v1
log = logging.getLogger(__name__)

PICTURE_INTERVAL_S = 60.0


class TensorBoardSink:
    """Writes scalars over env steps; a resumed run continues its curves without zig-zag."""

    # A full disk would end the thread of TensorFlow's own writer, so this writes the records.

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_new = not any(directory.glob("*tfevents*"))
        self._writer: Any = None
        self._path: Path | None = None  # what it writes to
        self._failing = False

    def write(self, env_steps: int, row: Mapping[str, float]) -> None:
        values = [tf1.Summary.Value(tag=k, simple_value=v) for k, v in row.items() if "/" in k]
        self._append(step=env_steps, summary=tf1.Summary(value=values))

    def restart(self, env_steps: int, **_notes: int) -> None:
        """Make TensorBoard drop the rolled-back points beyond `env_steps`."""
        start = tf1.SessionLog(status=tf1.SessionLog.START)
        self._append(step=env_steps + 1, session_log=start)

    def graph(self, graph_def: Any) -> None:
        """Write the graph unless the run has event files already: TensorBoard shows one per run."""
        if self._is_new:
            self._append(graph_def=graph_def.SerializeToString())

    def settings(self, config: Config, run_label: str) -> None:
        """Write all settings for the HPARAMS tab, which shows the last results beside them."""
        if not self._is_new:
            return
        from tensorboard.plugins.hparams import api_pb2, summary

        text, number = api_pb2.DATA_TYPE_STRING, api_pb2.DATA_TYPE_FLOAT64
        kinds = {bool: api_pb2.DATA_TYPE_BOOL, int: number, float: number}
        infos, values = [], {}
        for name, value in flat(config).items():
            kind = text if OPTIONS[name].is_list else kinds.get(OPTIONS[name].kind, text)
            infos.append(api_pb2.HParamInfo(name=name, type=kind))
            if value is not None:
                values[name] = _utf_8(plain(value)) if kind == text else value
        values["learning_rate"] = config.initial_learning_rate
        tags = ["cluster/mean_return_100", "cluster/episodes", "cluster/env_steps_per_s"]
        tags += ["episode/return", "episode/length"]
        tags += [f"info/{name}" for name in config.run.info_metrics]
        shown = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in tags]
        self._append(summary=summary.experiment_pb(infos, shown))
        self._append(summary=summary.session_start_pb(values, group_name=_utf_8(run_label)))

    def image(self, env_steps: int, name: str, pixels: np.ndarray) -> None:
        from PIL import Image

        png = io.BytesIO()
        height, width, channels = pixels.shape
        Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(png, "png")
        image = tf1.Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=png.getvalue()
        )
        value = tf1.Summary.Value(tag=name, image=image)
        self._append(step=env_steps, summary=tf1.Summary(value=[value]))

    def _append(self, **event: Any) -> None:
        try:
            is_here = self._path and os.path.lexists(self._path)  # raises nothing, as on NFS
            # Writing to a deleted file never fails. The folder is missing if the run was moved.
            if self._writer is None or (not is_here and self._directory.exists()):
                # Later than any other file: TensorBoard reads in the order of names.
                self._directory.mkdir(parents=True, exist_ok=True)
                others = self._directory.glob("events.out.tfevents.*")
                seconds = [path.name.split(".")[3] for path in others]
                newest = max((int(s) for s in seconds if s.isdecimal()), default=0)
                stamp = max(time.time(), newest + 1.0)
                name = f"events.out.tfevents.{stamp:.6f}.{os.uname().nodename}.{os.getpid()}"
                self._path = self._directory / name
                self._writer = tf.io.TFRecordWriter(os.fsencode(self._path))
                self._put(file_version="brain.Event:2")
            self._put(**event)
        except (OSError, tf.errors.OpError, UnicodeDecodeError) as error:  # last: non-UTF-8 paths
            if not self._failing:
                reason = str(error).splitlines()[0]
                log.error("can't write to %s (%s); training goes on", self._directory, reason)
            self._failing = True
            self._writer = None  # that file may end in half a record: continue in a new file
            with contextlib.suppress(OSError):  # a full disk would get an empty file each time
                if self._path and not self._path.stat().st_size:
                    self._path.unlink()
        else:
            self._failing = False

    def _put(self, **event: Any) -> None:
        record = tf1.Event(wall_time=time.time(), **event)
        self._writer.write(record.SerializeToString())
        self._writer.flush()


def _utf_8(text: str) -> str:
    """The text with escapes for bytes of a path that aren't UTF-8."""
    return text.encode(errors="backslashreplace").decode()


class Pictures:
    """Writes the network's input once a minute, if the input is an image."""

    def __init__(
        self, sink: TensorBoardSink, space: Box, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sink, self._clock = sink, clock
        self._image = observations.image_space(space)
        self._due = clock()

    def offer(self, env_steps: int, played: np.ndarray) -> None:
        """Write the newest of `played`, `[T, B, ...]` if one is due; takes some milliseconds."""
        now = self._clock()
        if self._image and now >= self._due:
            self._due = now + PICTURE_INTERVAL_S
            pixels = observations.pixels(played[-1, 0], self._image)
            shown = observations.picture(pixels, self._image)
            self._sink.image(env_steps, "input/observation", shown)
