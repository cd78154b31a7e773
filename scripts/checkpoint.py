"""Checkpoints of the demo models in training: a network's weights, its shape, and facts about the run."""

from dataclasses import asdict

import torch

import demo_model
import hybrid_model

NETWORKS = {"Llama": (demo_model.Llama, demo_model.Shape), "Hybrid": (hybrid_model.Hybrid, hybrid_model.Shape)}


def save(model, path, **facts):
    stored = {"network": type(model).__name__, "shape": asdict(model.shape), "weights": model.state_dict(), "facts": facts}
    torch.save(stored, path)


def load(path):
    """Returns the model and the facts saved with it."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    network, shape = NETWORKS[stored.get("network", "Llama")]
    model = network(shape(**stored["shape"]))
    model.load_state_dict(stored["weights"])
    return model, stored["facts"]
