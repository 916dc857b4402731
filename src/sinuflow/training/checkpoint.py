"""A run on disk: everything that it needs to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import StorageError, TrainingError
from ..storage import Model, read_model, write_model

_KIND = "checkpoint"


class Checkpoint(NamedTuple):
    """The state of a run; ``numbers`` is JSON, ``tensors`` are named by groups."""

    numbers: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


class CheckpointFolder:
    """A folder that holds the checkpoint of one run, and its history.

    Saving replaces the old checkpoint in one step, so that there is a whole one at any moment,
    whenever the process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "checkpoint.safetensors"
        self.history = folder / "history.jsonl"

    def prepare(self) -> None:
        """Create the folder, and remove what a killed process left half-written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for part in self.folder.glob(f".{self.file.name}.*.part"):
                part.unlink()
        except OSError as error:
            raise StorageError(f"cannot use {self.folder} for checkpoints: {error.strerror or error}") from error

    def exists(self) -> bool:
        return self.file.exists()

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"{group}/{name}": t for group, part in checkpoint.tensors.items() for name, t in part.items()}
        write_model(self.file, Model(_KIND, checkpoint.numbers, tensors))

    def read(self, fingerprint: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint, if it is one of a run with the same settings."""
        model = read_model(self.file)
        if model.kind != _KIND:
            raise StorageError(f"{self.file} is not a checkpoint but a {model.kind}")
        stored = model.config.get("fingerprint", {})
        differences = sorted(k for k in fingerprint.keys() | stored.keys() if fingerprint.get(k) != stored.get(k))
        if differences:
            first = differences[0]
            if first == "data":
                raise TrainingError(f"{self.folder} holds a run with other data: use another folder to start anew")
            raise TrainingError(
                f"{self.folder} holds a run with other settings ({first} was {stored.get(first)!r}, "
                f"now {fingerprint.get(first)!r}): use the same ones to go on, or another folder to start anew"
            )
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in model.tensors.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = tensor
        return Checkpoint(model.config, groups)
