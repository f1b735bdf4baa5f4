"""``study``: from a network to a measured plan of how to run each of its layers.

train or load -> whole network at uniform settings -> candidates of each layer -> accuracy -> whole plan -> save
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from torch import nn

from lamina import measure
from lamina.build import Target
from lamina.pipeline.convert import prepare_replay, provenance
from lamina.pipeline.deft.calibration import material
from lamina.pipeline.guard import Guard, Lost
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.study import written
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.deciding import decide
from lamina.pipeline.study.dense import dense_network, make_learner
from lamina.pipeline.study.explained import explained
from lamina.pipeline.study.fatal import IMPL, Fatal
from lamina.pipeline.study.front import find_front
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.study.judged import judge, scores_classes
from lamina.pipeline.study.layers import try_layers
from lamina.pipeline.study.outcomes import settled, settled_trial
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.predicted import predicted_us
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.uniform import available, uniform
from lamina.pipeline.train import objective
from lamina.pipeline.watch import Watch, unwatched
from lamina.record.study import Study
from lamina.spec.plan import NAME
from lamina.spec.training import Training
from lamina.store import Store

CHECKPOINT = "dense.safetensors"


@dataclass(frozen=True)
class Studied:
    """The result of `study`: its run, what it found, and where its plan is."""

    run_id: str
    study: Study
    folder: Path


@dataclass(frozen=True)
class _Found:
    """What the stages give: the study, the float32 network by its plan, and the networks by other choices."""

    study: Study
    network: nn.Module
    plans: Plans


def study(
    target: Target,
    data: str,
    settings: Training,
    store: Store,
    folder: Path,
    config: StudyConfig,
    *,
    cache: Path,
    weights: Path | None = None,
    device: str = "cpu",
    fresh: bool = False,
    command: str = "",
    lost: Lost | None = None,
    watch: Watch = unwatched,
) -> Studied:
    """Find how to run each layer of a network: what is measured to be faster, within an accuracy budget.

    What was measured is kept as it is measured: a study that was killed goes on where it stopped, and one of the same
    network on the same machine reuses it. The whole network is timed anew at the end of each.

    Args:
        target: the network.
        data: a data set with train and test splits, or ``synthetic``.
        settings: of training.
        store: receives the run, its epochs, every candidate, and the result.
        folder: of the plan and the weights.
        config: goal, limits and methods.
        cache: folder of selections, and of each study's journal and checkpoints.
        weights: of the trained network, for ``infer``: a safetensors state dict or a checkpoint of ``lamina train``.
        device: to run and measure on.
        fresh: whether to measure everything anew.
        command: the command line, for provenance.
        lost: what ended an earlier process, as `Fatal` told ``watch``, with the reasons; it does not run again.
        watch: receives the progress.

    Raises:
        DeviceLostError: the GPU became unusable. Another process goes on without what was running.
        UsageError: data, weights and network do not fit each other, synthetic data are to judge a training, or the
            device has none of the precisions or modes that the user allows.
    """
    budget = Budget(config.budget_s)
    at = measure.resolve(device)
    available(config, at)  # refuses what this device does not have before any work
    if config.training and data == "synthetic":
        watch("synthetic data tell nothing of accuracy: only methods that keep the results of a layer are tried")
    shape = max((source.shape for source in target.inputs), key=prod, default=(1,))
    parts = material(data, shape, config.calibration, settings.seed, at, target.train_test)
    environment = measure.environment(at)
    prepare_replay(at, wait=False)
    if causes := measure.Meter(at).causes():
        watch(f"the machine is busy: {'; '.join(causes)}: times may be wrong")
    limits = {key: value for key, value in asdict(config).items() if key != "budget_s"}
    more = {"data": data, "weights": str(weights or ""), "study": limits}
    this, _ = begin("study", target, settings, environment, store, command, not fresh, more)
    work_folder = cache / "studies" / this.fingerprint
    if fresh:
        shutil.rmtree(work_folder, ignore_errors=True)
    journal = Journal(work_folder / "journal.jsonl")
    with closing(store, this.id) as remarks:

        def note(text: str) -> None:
            remarks.append(text)
            watch(text)

        learner = make_learner(settings, config, parts, at, store, this.id, watch, note)
        with budget.stage("the dense network", 0.4):
            dense = dense_network(target, learner, config, weights, work_folder / CHECKPOINT, budget)
        loss = objective(parts.learn.name, parts.classes, note)
        subject = Subject(target.name, dense, at, config.training, config.batch, parts, loss, settings.optimizer)
        fatal = Fatal(Guard(target.name, IMPL, at, watch), journal)
        fatal.add(lost or {})
        context = Context(
            target=target,
            subject=subject,
            config=config,
            learner=learner,
            journal=journal,
            budget=budget,
            fatal=fatal,
            store=store,
            run_id=this.id,
            folder=work_folder,
            cache=cache,
            watch=watch,
            note=note,
            scored=scores_classes(subject),
        )
        found = _stages(context, data)
        written.save(folder, found.study, found.network, subject, target, parts.classes)
        if config.front and not config.training:
            written.save_front(folder, found.study, found.plans, subject, target, parts.classes)
        store.add_study(this.id, found.study)
        note(f"the plan is {folder / NAME}")
    return Studied(this.id, found.study, folder)


def _stages(context: Context, data: str) -> _Found:
    """All stages in order. Each may use the time until a fraction of the whole budget is spent."""
    config, subject, budget = context.config, context.subject, context.budget
    with budget.stage("the whole network", 0.6):
        wholes = uniform(context)
    with budget.stage("accuracy of settings", 0.65):
        judged = judge(context, wholes)
    base = judged.base
    with budget.stage("the layers", 0.72, least=0.4):
        layers = try_layers(context, base.settings)
    plans = context.plans(base.settings, layers.merged)
    with budget.stage("accuracy of plans", 0.92, least=0.6):
        candidates, front = find_front(context, plans, judged, layers)
    with budget.stage("the plan", 0.94):
        compared = decide(context, plans, candidates, judged, layers)
    with budget.stage("explaining"):  # last: its profiler leaves CUPTI on, which slows launches down (pytorch#144455)
        findings = explained(context, base.settings)
    choice, best = compared.selected, compared.uniform.settings
    network = compared.model if choice else subject.start(best)
    assert network is not None
    rows = settled(context, judged.wholes, compared, plans)
    trials = tuple(settled_trial(trial, choice) for trial in layers.trials)
    for trial in trials:
        context.store.add_trial(context.run_id, trial)
    found = Study(
        network=context.target.name,
        goal=config.goal,
        metric=plans.metric,
        max_accuracy_drop=config.max_accuracy_drop,
        data=data,
        batch=config.batch,
        wholes=tuple(rows),
        trials=trials,
        front=tuple(front),
        predicted_us=predicted_us(compared, base, rows) if choice else None,
        plan="",
        unsupported=layers.unsupported,
        findings=findings,
        seconds=dict(budget.spent),
        budget_s=config.budget_s,
        baseline=best,
    )
    found = written.with_plan(found, layers, choice, compared.ran, subject, provenance(subject.device))
    return _Found(found, network, plans)
