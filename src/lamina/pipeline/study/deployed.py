"""A network by a choice of methods, as a study runs it: at whole-network settings, its layers selected in place."""

from __future__ import annotations

import torch
from torch import nn

from lamina import accelerate
from lamina.accelerate.convert import put
from lamina.accelerate.methods.activation_sparsity import Sparse
from lamina.accelerate.methods.circulant.activation_fusion import fuse_activations
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.registry import candidates_of
from lamina.accelerate.select import Selector, observe
from lamina.accelerate.training.sparsity_monitor import wire
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.subject import Subject
from lamina.record.study import Settings
from lamina.spec import Method
from lamina.spec.whole_method import compresses


def deployed(
    subject: Subject, model: nn.Module, choice: Choice, settings: Settings, chosen: Selector
) -> tuple[nn.Module, dict[str, str]]:
    """The network at the settings, and by layer the implementation that was selected on what it reads there.

    Sparse layers are calibrated on a batch; layers with pruned inputs have other inputs than when they were tried.
    """
    network = subject.at(model, settings)
    inputs = subject.inputs(settings)
    example = inputs if isinstance(inputs, tuple) else (inputs,)
    sparse = {layer for layer, impl in choice.items() if Method.parse(impl).name == "sparse"}
    indexed = [name for name, layer in network.named_modules() if name in choice and isinstance(layer, Indexed)]
    ran: dict[str, str] = {}
    with subject.context(settings):
        if sparse:
            network, record = accelerate.convert(
                network, Sparse(), lambda name, _: name in sparse, example=example, selector=chosen
            )
            if subject.training and record.replaced:  # of the others, dense is faster on what they read here
                wire(network, example, sorted(one.layer for one in record.replaced))
        with torch.set_grad_enabled(subject.training):
            calls = observe(network, indexed, example)
        for name, call in calls.items():
            layer = network.get_submodule(name)
            offered = candidates_of(Eliminated())(layer, call, chosen)
            if len(offered) > 1:
                selection = chosen.select(f"{layer} on {call.signature}", offered, call)
                ran[name] = selection.impl
                put(network, name, offered[selection.impl]())
    if not compresses(settings.method):  # which keeps outputs of ReLU modules as bitmaps
        fuse_activations(network)
    return network, ran
