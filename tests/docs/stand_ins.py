"""What the pages' code takes for granted: names that a reader has, or that another block of the page has made.

A block is run, and checked by mypy, below ``from tests.docs.stand_ins import *``.
"""

from __future__ import annotations

from contextlib import asynccontextmanager as asynccontextmanager
from typing import TYPE_CHECKING

import torch as torch
import uvicorn as uvicorn
from fastapi import FastAPI as FastAPI
from torch import nn as nn

import coldstart as coldstart
from coldstart import Group as Group
from coldstart import Rank as Rank
from coldstart.asgi import HealthRoutes as HealthRoutes
from coldstart.healthchecks import HealthChecks as HealthChecks
from coldstart.skeletons.module import ModuleSkeleton as ModuleSkeleton

if TYPE_CHECKING:
    replica: coldstart.Replica
    """A replica that serves; made for each block."""

path = "/models/minilm"
checks = HealthChecks()
start_id = "start-1"
index = 0
rank = Rank(pp=0, pp_size=2)
group = Group(start_id, size=2, index=index)


class Embeddings(nn.Linear):
    """A stage of a model."""

    def __init__(self) -> None:
        super().__init__(3, 3)


class Head(Embeddings): ...


class Text(Embeddings): ...


class UNet(Embeddings): ...


class Vae(Embeddings): ...


def make() -> nn.Module:
    return nn.Embedding(8, 3)


def serve(module: object) -> None:
    """What a host does with its module."""
    assert isinstance(module, nn.Module)


def merge_adapter(module: object) -> None:
    """A change in place that brings the same bytes."""
    assert isinstance(module, nn.Module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0)
