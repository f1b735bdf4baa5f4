"""Networks by a choice of implementations, and their accuracy after recovery or training."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor, nn

from lamina import accelerate, build, run
from lamina.accelerate.convert import put, standard_twin
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.registry import converter, known_options
from lamina.accelerate.stand_ins import restore
from lamina.accelerate.training.compressed_activations import compressed
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.deft.agreement import agreement
from lamina.pipeline.deft.calibration import hits, percent
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.config import lossless
from lamina.pipeline.study.fitted import fitted, keep_of
from lamina.pipeline.study.folded import FOLDED
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.study.lossless import lossy
from lamina.pipeline.study.subject import Placing, Subject
from lamina.pipeline.watch import Watch
from lamina.record.study import Metric, Settings
from lamina.spec import Method
from lamina.spec.training import Training
from lamina.spec.whole_method import COMPRESSED, FOLD, compresses, folds, without

ERROR_BATCHES = 4
"""Of a step, that the error of outputs is measured on: it varies little, unlike the accuracy of class scores."""


@dataclass
class Plans:
    """Makes networks by choices, and knows how accurate they are.

    Attributes:
        subject: the dense network.
        settings: of the whole network.
        epochs: of training by the choice, or of fine-tuning after it.
        learner: trains.
        training: its settings.
        journal: holds accuracies by choice.
        folder: of checkpoints.
        merged: the layers that an implementation replaces together, by ``layer impl``.
        scored: whether outputs hold class scores; if not, accuracy is 100 less the error of the outputs in percent.
    """

    subject: Subject
    settings: Settings
    epochs: int
    learner: Learner
    training: Training
    journal: Journal
    folder: Path
    watch: Watch
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scored: bool = True
    _variants: dict[str, dict[float, nn.Module]] = field(default_factory=dict)
    _known: dict[tuple[str, bool], Tensor] = field(default_factory=dict)

    @cached_property
    def dense(self) -> nn.Module:
        """The float32 network that choices begin with, with stand-ins for what no method knows."""
        return standard_twin(self.subject.start(self.settings))

    @property
    def metric(self) -> Metric:
        """What is called accuracy."""
        return "accuracy" if self.scored else "output error"

    def recover(self, options: Mapping[str, Mapping[str, float]]) -> None:
        """Make the variants of layers with pruned inputs that options name; trained from the start they need none."""
        if not self.subject.training:  # else weights are learned after the choice
            dense = build.copied(self.dense).eval()
            self._variants |= fitted(dense, options, self.subject.material, self.subject.device, self.watch)

    def make(self, choice: Choice) -> nn.Module:
        """The float32 network by a choice, before any training; the dense network is not changed.

        Raises:
            UsageError: a layer has no variant of its choice.
        """
        model = build.copied(self.dense)
        rest: dict[str, str] = {}
        for layer, impl in choice.items():
            if Method.parse(impl).name == "eliminated":
                model = put(model, layer, self._eliminated(layer, impl))
            else:
                rest[layer] = impl
        if any(FOLDED in impl for impl in choice.values()):
            model, _ = fold(model)
        return restore(self._placed(model, rest), activations=not choice)

    def possible(self, choice: Choice) -> Choice:
        """The choice without layers whose implementation does not fit them beside it.

        A layer loses the outputs that its reader's pruned inputs do not need; a block size may exceed what is left.
        """
        pruned = {layer: impl for layer, impl in choice.items() if Method.parse(impl).name == "eliminated"}
        others = choice.keys() - pruned.keys()
        if not others or not any(FOLDED in impl for impl in pruned.values()):
            return choice
        model, unfit = self.make(pruned), set()
        for layer in others:
            try:
                model = self._placed(model, {layer: choice[layer]})
            except (UsageError, UnsupportedError):
                unfit.add(layer)
        return {layer: impl for layer, impl in choice.items() if layer not in unfit}

    def _placed(self, model: nn.Module, choice: Choice) -> nn.Module:
        """A network with the chosen implementations of layers that are dense in it."""
        by_impl: dict[str, set[str]] = {}
        for layer, impl in choice.items():
            by_impl.setdefault(impl, set()).update(self.merged.get(f"{layer} {impl}", (layer,)))
        for impl, names in by_impl.items():
            if (method := Method.parse(impl)).dense:
                for name in names:
                    model = put(model, name, build.by_algorithm(method, model.get_submodule(name)))
                continue
            config = accelerate.configuration(known_options(impl))
            model, record = accelerate.convert(model, config, lambda name, _, names=names: name in names)  # type: ignore[misc]
            if not record.replaced:
                reasons = dict.fromkeys(str(one.refusal) for one in record.skipped if one.layer in names)
                raise UsageError(f"{impl}: {'; '.join(reasons)}")
        return model

    def _eliminated(self, layer: str, impl: str) -> nn.Module:
        if self.subject.training:
            config = replace(accelerate.configuration(known_options(impl)), impl="auto")
            new: nn.Module = converter(config).replace(self.dense.get_submodule(layer), config)
            return new
        row = self._variants.get(layer, {})
        keep = keep_of(impl)
        if keep not in row:
            raise UsageError(f"{layer}: nothing is pruned at a keep ratio of {keep:g}")
        return copy.deepcopy(row[keep])

    def damage(self, layer: str, impl: str) -> float:
        """What the network loses by one layer's implementation alone: the relative error of its outputs in percent.

        In training, where weights adapt, it is the part of the parameters that the layer loses.
        """
        if lossless(impl):
            return 0.0
        if self.subject.training:
            model = self.make({layer: impl})
            before, after = (sum(p.numel() for p in m.parameters()) for m in (self.dense, model))
            return max((before - after) / before, 1e-9)
        question = f"damage {layer} {impl}{self._fold}"
        if question not in self.journal:
            x = run.moved(self.subject.material.example(self.subject.batch), self.subject.device)
            made = _with_dense_layers(self.make({layer: impl}))  # in float32, which needs no kernel of its own
            model, dense = made.eval(), build.copied(self.dense).eval()
            self.journal.put(question, max(100 - agreement(model, dense, [x], self.subject.device), 1e-9))
        return float(self.journal[question])

    def trained(self, choice: Choice) -> nn.Module:
        """The float32 network by a choice after its training or fine-tuning.

        What keeps results takes no part in the training: networks that differ in nothing else are trained once.
        """
        changes = lossy(choice)
        kept = {layer: impl for layer, impl in choice.items() if layer not in changes}
        return self._placed(self._trained(changes), kept).eval()

    def _trained(self, changes: Choice, repeat: int = 0) -> nn.Module:
        model = self.make(changes)
        changed = self.subject.training or bool(changes)
        if not self.epochs or not changed or not (self.scored or self.subject.training):
            return model.eval()
        # Of networks that train, everything is learned; after a change of a trained network, a part of that.
        slower = 1.0 if self.subject.training else 0.1
        settings = self.training.model_copy(
            update={
                "epochs": self.epochs,
                "seed": self.training.seed + repeat,
                "learning_rate": slower * self.training.learning_rate,
                "precision": self.settings.precision if self.subject.training else self.training.precision,
            }
        )
        torch.manual_seed(settings.seed)
        checkpoint = self.folder / f"{self.key(changes, repeat)}.safetensors"
        saving = compressed(model) if compresses(self.settings.method) else nullcontext()
        with saving, gathering(model):
            return self.learner.learn(model, settings, checkpoint, resume=True)

    def accuracy(self, choice: Choice, test: bool = False, repeat: int = 0) -> float:
        """Accuracy in percent of the network by a choice, at the settings; on the calibration samples by default.

        ``repeat`` numbers trainings that differ in the order of their samples.
        """
        changes = lossy(choice)
        question = self._question(f"{'test' if test else 'calibration'} accuracy", changes, repeat)
        if question not in self.journal:
            self.journal.put(question, percent(self._hits(changes, test, repeat)))
        return float(self.journal[question])

    def standard_error(self, choice: Choice) -> float:
        """The standard error in points of the accuracy that a choice loses on the calibration samples, to infer.

        The dense network has answered the same samples: only those count that the two answer differently (McNemar,
        Psychometrika 12(2), 1947). Two trainings differ by chance besides, and errors of outputs are no sample's: for
        them it is 0.
        """
        changes = lossy(choice)
        if self.subject.training or not self.scored or not changes:
            return 0.0
        question = self._question("standard error", changes)
        if question not in self.journal:
            lost = self._hits({}) - self._hits(changes)
            self.journal.put(question, 100 * float(lost.std(correction=0)) / sqrt(len(lost)))
        return float(self.journal[question])

    def _question(self, what: str, changes: Choice, repeat: int = 0) -> str:
        method = without(self.settings.method, COMPRESSED)  # whose gradients are the same
        return f"{what} {self.settings.precision} {method} {self.key(changes, repeat)}"

    def _hits(self, changes: Choice, test: bool = False, repeat: int = 0) -> Tensor:
        """What the network by changes has right: a fraction of each sample, or one of all outputs."""
        key = (self.key(changes, repeat), test)
        if key not in self._known:
            self._known[key] = self._judged(self._trained(changes, repeat), test)
        return self._known[key]

    def _judged(self, model: nn.Module, test: bool) -> Tensor:
        """The `_hits` of a float32 network at the settings."""
        subject, parts = self.subject, self.subject.material
        part = parts.test if test else parts.calibration
        settings = replace(self.settings, mode="eager")
        precision = "fp32" if subject.training else settings.precision
        deployed = subject.at(model, settings).eval()
        with subject.context(settings):
            if self.scored:
                return hits(deployed, parts.ordered(part), subject.device, precision, parts.classes)
            some = islice(parts.ordered(part, subject.batch), ERROR_BATCHES)
            inputs = (run.moved(x, subject.device, torch.float32) for x, _ in some)
            reference = build.copied(subject.dense).eval()
            agreed = agreement(Placing(deployed, precision), reference, inputs, subject.device)
            return torch.tensor([agreed / 100], dtype=torch.float64)

    def key(self, choice: Choice, repeat: int = 0) -> str:
        """A short name of a choice and the number of its training, for files and the journal."""
        precision = self.settings.precision if self.subject.training else ""
        text = f"{sorted(choice.items())} fitted to training samples {self.epochs} {precision}"
        text += self._fold + (f" repeated {repeat}" if repeat else "")
        return sha256(text.encode()).hexdigest()[:12]

    @property
    def _fold(self) -> str:
        return f" {FOLD}" if folds(self.settings.method) else ""


@contextmanager
def gathering(model: nn.Module) -> Iterator[None]:
    """Within it, PyTorch's operators copy the inputs that pruned layers keep.

    Otherwise each of these layers would compile kernels for a training of a few epochs.
    """
    impls = {one: one.impl for one in model.modules() if isinstance(one, Indexed)}
    for layer in impls:
        layer.impl = "gather"
    try:
        yield
    finally:
        for layer, impl in impls.items():
            layer.impl = impl


def _with_dense_layers(model: nn.Module) -> nn.Module:
    """The network with every layer by another method as the dense layer that computes the same, in place."""
    changed = [(name, module) for name, module in model.named_modules() if hasattr(module, "to_dense")]
    for name, module in changed:
        model = put(model, name, module.to_dense())
    return model
