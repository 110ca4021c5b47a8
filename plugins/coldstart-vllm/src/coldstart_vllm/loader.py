"""The loader behind ``--load-format coldstart``: vLLM's own order of things, with a cold start in the middle.

vLLM makes the model, coldstart fills it in model format (from a peer, or by vLLM's default loader), vLLM
processes it for its kernels, and what is proven to be still the same memory goes on being lent. Whatever
is refused, or fails, is loaded as ``load_format=auto`` would. The decisions are in ``facts.py``,
``survey.py``, ``witness.py`` and ``proof.py``.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Generator, Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from coldstart import IntegrityError
from coldstart_vllm import background, engine, facts, proof, survey
from coldstart_vllm.background import Background, Order
from coldstart_vllm.options import parse
from coldstart_vllm.relay import Relay
from coldstart_vllm.skeleton import EngineSkeleton, Fill
from coldstart_vllm.words import arrived, step

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

    from coldstart import Progress, Replica

logger = init_logger("vllm.coldstart")


class _Unfilled(Exception):
    """The model's memory has been changed and its weights have not come: it must be made anew."""


class ColdstartLoader(BaseModelLoader):
    """See the module; raises ValueError for an extra config that it does not know."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self._options = parse(load_config.model_loader_extra_config)
        plain = copy.copy(load_config)
        plain.load_format, plain.model_loader_extra_config = "auto", {}
        self._default = DefaultModelLoader(plain)
        self._config: VllmConfig | None = None
        self._started: Background | None = None
        self._root = ""
        """The name of the verified bytes."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Fetch the checkpoint, as the default loader does."""
        self._default.download_model(model_config)

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """What a reload in place reads: from storage, and nobody reads the old weights any more."""
        self._withdraw(model)
        return self._default.get_all_weights(model_config, model)

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Within :meth:`load_model` a cold start; for a model that is loaded already, a load from storage."""
        if self._config is None:
            self._withdraw(model)
            self._default.load_weights(model, model_config)
        else:
            self._fill(self._config, model, model_config)

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "", **more: object
    ) -> nn.Module:
        """A model that serves; see the module. ``more`` is what later versions of vLLM may add."""
        books = engine.Bookkeeping(vllm_config)
        self._config, self._started = vllm_config, None
        try:
            model = super().load_model(vllm_config, model_config, prefix, **more)
        except _Unfilled as error:
            logger.warning("coldstart: %s; making the model anew, from storage", error)
        else:
            self._settle(model)
            return model
        finally:
            self._config = None
            self._abandon()
        books.restore()
        gc.collect()
        torch.accelerator.empty_cache()
        return self._default.load_model(vllm_config, model_config, prefix, **more)

    # ------------------------------------------------------------------------------------ the start

    def _fill(self, vllm_config: VllmConfig, model: nn.Module, model_config: ModelConfig) -> None:
        relay: Relay[Set[str] | None] = Relay()

        def fill(module: nn.Module) -> Set[str] | None:
            return relay.call(lambda: self._loaded(module, model_config))

        try:
            order = self._order(vllm_config, model, model_config, fill)
        except Exception as error:  # another version of vLLM; nothing has been touched yet
            order = f"this vLLM is not understood: {error!r}"
        if isinstance(order, str):
            logger.info("coldstart: not for these weights: %s; loading from storage, lending nothing", order)
            self._default.load_weights(model, model_config)
            return
        _synchronise(order.device)
        started = Background(order, relay, _progress)
        try:
            report = started.start()
        except Exception as error:
            started.leave(wait=True)
            if not order.skeleton.filled or isinstance(error, IntegrityError):
                raise _Unfilled(str(error)) from None
            logger.warning("coldstart: loaded from storage, lending nothing: %s", error)
            return
        _synchronise(order.device)
        self._started, self._root = started, report.root or _root_now(started)
        logger.info("coldstart: %s", arrived(report))

    def _order(
        self, vllm_config: VllmConfig, model: nn.Module, model_config: ModelConfig, fill: Fill
    ) -> Order | str:
        """What is to be started, or why it is not."""
        known = engine.facts_of(vllm_config, model_config, model)
        if reasons := (*facts.refusals(known), *survey.problems(model)):
            return "; ".join(reasons)
        directory = engine.directory_of(model_config, self.load_config.download_dir)
        if directory is None:
            return f"{model_config.model} is not on this machine"
        try:
            reason = engine.unlike(directory)
        except (OSError, ValueError, KeyError) as error:
            reason = f"{directory} cannot be read: {error}"
        if reason:
            return reason
        skeleton = EngineSkeleton(
            model, facts.identity_of(known), fill, leaves_memory=self._options.keep_raw
        )
        if impossible := skeleton.impossible(model):
            return "; ".join(impossible[:3])
        options = self._options
        device = str(survey.device_of(model))
        return Order(directory, skeleton, device, facts.rank_of(known), options.revision, options.settings)

    def _loaded(self, model: nn.Module, model_config: ModelConfig) -> Set[str] | None:
        """Fill by the default loader; the names that the model says it has loaded."""
        with _overheard(model) as names:
            self._default.load_weights(model, model_config)
        return names[0] if names else None

    # ------------------------------------------------------------------------------------ afterwards

    def _settle(self, model: nn.Module) -> None:
        """The model is processed: go on lending what is still what was verified, or withdraw."""
        started, self._started = self._started, None
        replica = started.replica if started is not None else None
        if started is None or replica is None:
            return
        try:
            reason = self._unlike(model, replica)
        except Exception as error:  # the engine has its weights; only lending is at stake
            reason = f"the memory cannot be proven: {error!r}"
        if not reason:
            background.remember(model, started)
            logger.info("coldstart: these weights are lent while this engine serves")
            return
        started.leave()
        logger.info("coldstart: lending nothing: %s", reason)

    def _unlike(self, model: nn.Module, replica: Replica) -> str:
        """Why the verified memory is not lent any more; empty if it is. What vLLM still uses of it is moved off."""
        changed = proof.moved(model, replica)
        if changed and not self._options.keep_raw:
            proof.move_off(model, replica)
            return f"vLLM has replaced {len(changed)} of the tensors ({changed[0]}, ...); keep_raw would keep them"
        if proof.root_of(replica) != self._root:
            return "vLLM has changed the weights in place"
        return ""

    def _abandon(self) -> None:
        """End a cold start whose model did not come to serve."""
        if self._started is not None:
            self._started.leave()
            self._started = None

    def _withdraw(self, model: nn.Module) -> None:
        if background.withdraw(model):
            logger.info("coldstart: the weights are about to change, lending nothing any more")


@contextmanager
def _overheard(model: nn.Module) -> Iterator[list[Set[str]]]:
    """What ``model.load_weights`` returns inside the block, which vLLM's loader keeps to itself."""
    heard: list[Set[str]] = []
    load: Callable[..., object] = getattr(model, "load_weights")  # noqa: B009 - for torch it would be a tensor or a module

    def load_weights(*args: object, **kwargs: object) -> object:
        names = load(*args, **kwargs)
        if isinstance(names, Set):
            heard.append(frozenset(names))
        return names

    vars(model)["load_weights"] = load_weights
    try:
        yield heard
    finally:
        del vars(model)["load_weights"]


def _root_now(started: Background) -> str:
    """For weights whose truth no store has taken yet."""
    return proof.root_of(started.replica) if started.replica is not None else ""


def _synchronise(device: str) -> None:
    """What vLLM has queued must be done before another thread reads it, and the other way round."""
    if not device.startswith("cpu"):
        torch.accelerator.synchronize(device)


def _progress(progress: Progress) -> None:
    logger.debug("coldstart: %s", step(progress))
