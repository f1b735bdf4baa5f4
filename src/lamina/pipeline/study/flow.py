"""``study``: from a network to a measured plan of how to run each of its layers.

train or load -> whole network at uniform settings -> candidates of each layer -> accuracy -> whole plan -> save
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import nn

from lamina import measure, run
from lamina.build import Target
from lamina.errors import DeviceLostError, LaminaError, UsageError
from lamina.pipeline import updates
from lamina.pipeline.bench import bench
from lamina.pipeline.convert import prepare_replay, provenance, selector
from lamina.pipeline.deft.calibration import Material, accuracy, material
from lamina.pipeline.deft.learning import Learner
from lamina.pipeline.deft.trained import pretrained, require_copies
from lamina.pipeline.explain import explain
from lamina.pipeline.guard import Guard, Lost
from lamina.pipeline.runs import begin, closing
from lamina.pipeline.study import written
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.combine import Candidate, Choice, Option, furthest, sequence, spread
from lamina.pipeline.study.config import StudyConfig, lossless
from lamina.pipeline.study.fatal import IMPL, Fatal
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.study.layers import Layers, try_layers
from lamina.pipeline.study.lossless import is_unit, with_units, without_units
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.uniform import available, fastest, uniform, within
from lamina.pipeline.study.whole import Compared, Variant, compare, to_sequence, without_sparse
from lamina.pipeline.train import objective
from lamina.pipeline.watch import Watch, tracked, unwatched
from lamina.record.study import FrontPoint, Measured, Settings, Study, Trial
from lamina.spec import Workload
from lamina.spec.plan import COMPILED, NAME
from lamina.spec.training import Training
from lamina.spec.whole_method import COMPRESSED, mixes, without
from lamina.store import Store

CHECKPOINT = "dense.safetensors"
NEAR = 1.15
"""Settings whose time is within this factor of the fastest are timed again beside the plan."""
AGAIN = 3
"""Of them, at most these are timed again."""
FRONT_POINTS = 8
"""Plans along the front whose accuracy is measured."""


@dataclass(frozen=True)
class Studied:
    """The result of `study`: its run, what it found, and where its plan is."""

    run_id: str
    study: Study
    folder: Path


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
        UsageError: data, weights and network do not fit each other, or synthetic data are to judge a training.
    """
    budget = Budget(config.budget_s)
    at = measure.resolve(device)
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

        def remark(text: str) -> None:
            remarks.append(text)
            watch(text)

        learner = _learner(settings, config, parts, at, store, this.id, watch, remark)
        with budget.stage("the dense network", 0.4):
            dense = _dense(target, learner, config, weights, work_folder / CHECKPOINT, budget)
        judge = objective(parts.learn.name, parts.classes, remark)
        subject = Subject(target.name, dense, at, config.training, config.batch, parts, judge, settings.optimizer)
        fatal = Fatal(Guard(target.name, IMPL, at, watch), journal)
        fatal.add(lost or {})
        work = _Work(
            target, subject, config, learner, journal, budget, fatal, store, this.id, work_folder, cache, watch, remark
        )  # fmt: skip
        result = work.study(data)
        written.save(folder, result, work.result, subject, target, parts.classes)
        if config.front and not config.training:
            written.save_front(folder, result, work.plans, subject, target, parts.classes)
        store.add_study(this.id, result)
        remark(f"the plan is {folder / NAME}")
    return Studied(this.id, result, folder)


def _learner(
    settings: Training, config: StudyConfig, parts: Material, device: torch.device, store: Store, run_id: str,
    watch: Watch, remark: Callable[[str], object],
) -> Learner:  # fmt: skip
    """On a GPU, what is only to be judged is trained in CUDA graphs, channels-last, and in TF32 in place of fp32.

    In strict fp32, trainings of a large network would take most of the study's time.
    """
    if device.type != "cuda":
        return Learner(settings, parts, device, store, run_id, watch, remark)
    precisions, _ = available(config, device)
    if settings.precision == "fp32" and "tf32" in precisions:
        settings = settings.model_copy(update={"precision": "tf32"})
    mode = updates.fastest(device)
    return Learner(settings, parts, device, store, run_id, watch, remark, mode, "nhwc")


def _dense(
    target: Target, learner: Learner, config: StudyConfig, weights: Path | None, checkpoint: Path, budget: Budget
) -> nn.Module:
    """The user's network on the device: to infer it is trained, unless there are only synthetic data."""
    torch.manual_seed(learner.settings.seed)
    network = target.make(learner.material.classes)
    run.size_lazy_parameters(network, run.moved(learner.material.example(2), torch.device("cpu")))
    require_copies(network, "study")
    if weights:
        return pretrained(network, weights).to(learner.device)
    if config.training or not config.train_epochs or learner.material.learn.name == "synthetic":
        return network.to(learner.device)
    epochs = learner.settings.model_copy(update={"epochs": config.train_epochs})
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    return learner.learn(network, epochs, checkpoint, resume=True, stop=lambda: budget.over)


class _Work:
    """The stages of a study, with what they share."""

    def __init__(
        self,
        target: Target,
        subject: Subject,
        config: StudyConfig,
        learner: Learner,
        journal: Journal,
        budget: Budget,
        fatal: Fatal,
        store: Store,
        run_id: str,
        folder: Path,
        cache: Path,
        watch: Watch,
        remark: Callable[[str], object],
    ) -> None:
        self.target, self.subject, self.config, self.learner = target, subject, config, learner
        self.journal, self.budget, self.fatal, self.store, self.run_id = journal, budget, fatal, store, run_id
        self.folder, self.cache, self.watch, self.remark = folder, cache, watch, remark
        self.scored = _scored(subject.material, subject)
        self.result: nn.Module = subject.dense
        self.plans: Plans | None = None

    def study(self, data: str) -> Study:
        """All stages in order."""
        config, subject, budget = self.config, self.subject, self.budget
        with budget.stage("the whole network", 0.6):
            wholes = uniform(subject, config, self.journal, budget, self.fatal, self.watch)
        with budget.stage("accuracy of settings", 0.65):
            wholes, reference = self._judged(wholes)
        accepted = [one for one in wholes if one.outcome != "inaccurate"]
        best = fastest(accepted)
        base = fastest(one for one in accepted if mixes(one.settings.method))
        with budget.stage("explaining", 0.68):
            findings = self._findings(base.settings)
        with budget.stage("the layers", 0.75, least=0.4):
            layers = try_layers(
                subject, config, base.settings, self.cache, budget, self.fatal,
                lambda trial: self.store.add_trial(self.run_id, trial), self.watch,
            )  # fmt: skip
        self.plans = plans = self._plans(base.settings, layers)
        with budget.stage("accuracy of plans", 0.92, least=0.6):
            candidates = sequence(self._options(plans, layers), layers.dense_us)
            scale = _scale(base, layers)
            index, front = self._front(plans, candidates, base, scale, reference)
        with budget.stage("the plan"):
            compared = self._compared(plans, candidates[: index + 1], base, best, wholes, layers)
        choice = compared.choice if compared.faster else {}
        best = compared.uniform  # on a second look, another one of those that are near may be the fastest
        if not choice:
            self.result = subject.start(best.settings)
        wholes = self._ended(wholes, best, compared, plans, choice)
        trials = tuple(self._settled(trial, choice) for trial in layers.trials)
        for trial in trials:
            self.store.add_trial(self.run_id, trial)
        predicted = self._predicted(layers, compared, base, wholes) if choice else None
        found = Study(
            self.target.name, config.goal, plans.metric, config.max_accuracy_drop, data, config.batch,
            tuple(wholes), trials, tuple(front), predicted, "", layers.unsupported, findings,
            dict(budget.spent), config.budget_s, best.settings,
        )  # fmt: skip
        return written.with_plan(found, layers, choice, compared.ran, subject, provenance(subject.device))

    def _plans(self, settings: Settings, layers: Layers | None = None) -> Plans:
        return Plans(
            self.subject, settings, self.config.epochs, self.learner, self.learner.settings, self.journal,
            self.folder, self.watch, layers.merged if layers else {}, self.scored,
        )  # fmt: skip

    def _judged(self, wholes: Sequence[Measured]) -> tuple[list[Measured], float]:
        """The settings with their accuracy, the fastest first, until one keeps it; and that of the user's own.

        The fastest is judged even if the time of the stage is spent: else the study would go on at slow settings.
        """
        before, *others = wholes
        judged: dict[Settings, Measured] = {}
        known: dict[tuple[str, str], float] = {}
        reference: float | None = None
        if before.timing is not None:
            reference = known[_judged_as(before)] = self._accuracy(before.settings)
            judged[before.settings] = replace(before, accuracy=reference)
        ahead = [one for one in others if one.timing is not None and one.outcome != "refused"]
        first = float("inf")
        least = len(known)
        for one in tracked("accuracy at each setting", sorted(ahead, key=_time), len(ahead), self.watch):
            key = _judged_as(one)
            decided = _time(one) > NEAR * first
            if key not in known and not decided and (len(known) == least or not self.budget.over):
                try:
                    known[key] = self._accuracy(one.settings)
                except (LaminaError, RuntimeError) as error:
                    judged[one.settings] = replace(one, outcome="failed", timing=None, reason=run.one_line(error))
                    continue
            if reference is None:  # the network does not run as it was
                reference = known.get(key)
            judged[one.settings] = self._verdict(one, known.get(key), reference or 0.0, decided)
            if judged[one.settings].outcome == "slower":
                first = min(first, _time(one))
        return [judged.get(one.settings, one) for one in wholes], reference or 0.0

    def _verdict(self, one: Measured, found: float | None, reference: float, decided: bool) -> Measured:
        if found is None:
            reason = "another setting was faster" if decided else "the time budget was spent before its accuracy"
            return replace(one, outcome="slower" if decided else "inaccurate", reason=reason)
        lost = reference - found
        if lost > self.config.max_accuracy_drop:
            return replace(one, accuracy=found, outcome="inaccurate", reason=f"loses {lost:.2f} points")
        return replace(one, accuracy=found, outcome="slower")

    def _accuracy(self, settings: Settings, test: bool = False) -> float:
        return self._plans(self._judging(settings)).accuracy({}, test)

    def _judging(self, settings: Settings) -> Settings:
        """The settings that accuracy is judged at: those of the learner in place of strict fp32."""
        strict = self.config.training and settings.precision == "fp32"
        return replace(settings, precision=self.learner.settings.precision) if strict else settings

    def _findings(self, settings: Settings) -> tuple[str, ...]:
        """What limits the network at the settings: the headlines of a short bench."""
        layers = sum(1 for module in self.subject.dense.modules() if not any(True for _ in module.children()))
        if not self.budget.covers(2.0 + 0.3 * layers):
            return ()
        phases = ["forward", "backward_data", "backward_weight"] if self.config.training else ["forward"]
        asked = {"batch": [self.config.batch], "precision": [settings.precision], "layout": [settings.layout]}
        how = {"phases": phases, "device": str(self.subject.device), "check": False, "seconds": 0.03}
        workload = Workload.model_validate(asked | how)
        try:
            with measure.alone():
                benched = bench(
                    self.target, workload, self.store, cache=self.cache, command=f"study {self.run_id}", resume=True
                )
            self.remark(f"layers at {settings.precision}, {settings.layout} are in run {benched.id}")
            return tuple(one.claim for one in explain(self.store, benched.id).headlines)
        except LaminaError as error:
            self.remark(f"not explained: {run.one_line(error)}")
            return ()

    def _predicted(self, layers: Layers, compared: Compared, base: Measured, wholes: Sequence[Measured]) -> float:
        """The plan's step, predicted: the dense one in its mode, less what its layers save, each timed alone.

        Layers of the plan are timed in it: where inputs are pruned, their neighbours have become smaller too. The
        compiler makes fused units itself: in its modes they save nothing.
        """
        settings = compared.plan.settings
        dense = next((one for one in wholes if one.settings == settings and one.timing is not None), base)
        units = {layer: impl for layer, impl in compared.choice.items() if is_unit(impl)}
        saved = sum(
            layers.dense_us[layer] - time_us
            for layer, time_us in compared.alone_us.items()
            if layer in layers.dense_us and layer not in units
        )
        if settings.mode not in COMPILED:
            saved += sum(layers.faster[layer][impl] for layer, impl in units.items())
        return _time(dense) - _scale(dense, layers) * saved

    def _options(self, plans: Plans, layers: Layers) -> dict[str, list[Option]]:
        """By layer, the candidates that are faster, with what they damage.

        Fused units damage nothing. Where the compiler runs they join at the end, if the plan is faster with them.
        """
        kept = self.config.training and self.subject.material.learn.name == "synthetic"
        compiles = plans.settings.mode in COMPILED
        rows = {
            name: {i: s for i, s in row.items() if not (kept and not lossless(i)) and not (compiles and is_unit(i))}
            for name, row in layers.faster.items()
        }
        plans.recover(rows)
        found: dict[str, list[Option]] = {}
        for layer, row in tracked("what each candidate damages", rows.items(), len(rows), self.watch):
            for impl in row:
                try:
                    one = replace(layers.option(layer, impl), damage=plans.damage(layer, impl))
                    found.setdefault(layer, []).append(one)
                except LaminaError as error:
                    self.remark(f"{layer}, {impl}: {run.one_line(error)}")
        return found

    def _front(
        self, plans: Plans, candidates: Sequence[Candidate], base: Measured, scale: float, reference: float
    ) -> tuple[int, list[FrontPoint]]:
        """The furthest plan that keeps the accuracy, and the accuracy over the predicted time of those tried.

        A plan's layers save ``scale`` times what they save in the mode that they were timed in.
        """
        time_us = _time(base)
        front = [FrontPoint(time_us, self._accuracy(base.settings), {}, measured=True)]
        longest = 0.0

        def accepted(index: int) -> bool | None:
            nonlocal longest
            candidate = candidates[index]
            if not self.budget.covers(longest):
                self.remark("the time budget was spent before every plan had its accuracy")
                return None
            watch = measure.Stopwatch()
            changed = f"{len(candidate.choice)} layers changed"
            try:
                with self._watched(plans, candidate.choice, "accuracy of plans"):
                    found = plans.accuracy(candidate.choice)
            except DeviceLostError:
                raise
            except (LaminaError, RuntimeError) as error:  # such as a loss that is not finite, or too little memory
                self.remark(f"{changed}: {run.one_line(error)}")
                return False
            finally:
                longest = max(longest, watch.seconds)
            front.append(FrontPoint(time_us - scale * candidate.saved_us, found, dict(candidate.choice)))
            kept = reference - found <= self.config.max_accuracy_drop
            self.watch(f"{changed}: {plans.metric} {found:.2f} %, {'within' if kept else 'beyond'} the budget")
            return kept

        index = furthest(len(candidates), accepted)
        known = {tuple(sorted(point.methods.items())) for point in front}
        for other in spread(len(candidates), FRONT_POINTS):  # a front of more points, while there is time
            if tuple(sorted(candidates[other].choice.items())) not in known and accepted(other) is None:
                break
        return index, sorted(front, key=lambda point: point.time_us)

    @contextmanager
    def _watched(self, plans: Plans, choice: Choice, stage: str) -> Iterator[None]:
        """Watch over a network by a choice.

        Raises:
            LaminaError: it ended an earlier process.
        """
        what = f"the plan {plans.key(choice)}, {len(choice)} layers changed"
        if (reason := self.fatal.reason(what)) is not None:
            raise LaminaError(reason)
        with self.fatal(what, stage):
            yield

    def _compared(
        self,
        plans: Plans,
        candidates: Sequence[Candidate],
        base: Measured,
        best: Measured,
        wholes: Sequence[Measured],
        layers: Layers,
    ) -> Compared:
        """The fastest plan that is faster as a whole, or the last that was tried."""
        subject = self.subject
        index = len(candidates) - 1
        chosen = selector(subject.device, subject.layer_mode(base.settings), subject.training, self.cache)
        modes = to_sequence(wholes, base)
        # The best settings may be another package's, whose time is the one to beat.
        kept = [one for one in wholes[1:] if one.accuracy is not None and one.outcome == "slower"]
        near = [one for one in sorted(kept, key=_time) if _time(one) <= NEAR * _time(best)][:AGAIN] or [best]
        none = False  # whether not even the plan that changes the least ran
        while True:
            choice = {} if none else with_units(candidates[index].choice, layers.faster)
            self.watch(f"timing the whole network with {len(choice)} layers changed")
            try:
                with self._watched(plans, choice, "the plan") if choice else nullcontext():
                    variants = self._variants(plans, choice, modes, layers)
            except DeviceLostError:
                raise
            except (LaminaError, RuntimeError) as error:
                self.remark(f"{len(choice)} layers changed: {run.one_line(error)}")
                index, none = index // 2, not index
                continue
            with self._watched(plans, choice, "the plan"):
                before = [one for one in wholes[:1] if one.timing is not None and one not in near]
                compared = compare(subject, variants, base, [*before, *near], chosen, self.budget.left)
                compared = _within(compared, self.config.max_memory)
            # On a busy machine the first times were noise: what seemed slower then, but is faster now, is timed again.
            passed = [one for one in kept if one not in near and _time(one) < _time(compared.uniform)][:AGAIN]
            if passed and not self.budget.over:
                near += passed
                continue
            if not variants:
                return compared
            if compared.faster:
                assert compared.model is not None
                self.result = compared.model
                return compared
            self.remark(f"{len(choice)} layers changed: not faster as a whole: {compared.reason}")
            if index == 0 or self.budget.over:
                return compared
            index //= 2

    def _variants(self, plans: Plans, choice: Choice, modes: Sequence[str], layers: Layers) -> dict[str, list[Variant]]:
        """Networks by a choice for each mode; where the compiler runs, without fused units too."""
        separate = without_units(choice, layers.faster)
        wanted = [choice] if choice == separate else [separate, choice]
        made: list[Variant] = [(one, plans.trained(without_sparse(one))) for one in wanted if one]
        return {mode: made if mode in COMPILED else made[-1:] for mode in modes} if made else {}

    def _ended(
        self, wholes: Sequence[Measured], best: Measured, compared: Compared, plans: Plans, choice: Choice
    ) -> list[Measured]:
        """Every row with what became of it, the plan's last; accuracies are those of the test samples."""
        rows = []
        for one in tracked("accuracy on the test samples", wholes, len(wholes), self.watch):
            if one.accuracy is not None and one.timing is not None:
                one = replace(one, accuracy=self._accuracy(one.settings, test=True))
            for again in compared.uniforms:
                if one.settings == again.settings:
                    one = replace(one, timing=again.timing)
            if one.settings == best.settings and not choice:
                one = replace(one, outcome="selected", reason="no layer by another method is faster as a whole")
            rows.append(one)
        if choice:
            plan = replace(compared.plan, accuracy=plans.accuracy(choice, test=True), reason=compared.reason)
            return [*rows, plan]
        chosen = next(one for one in rows if one.settings == best.settings)
        return [*rows, replace(chosen, name="plan")]

    def _settled(self, trial: Trial, choice: Choice) -> Trial:
        """A candidate with what became of it in the plan."""
        if trial.outcome != "selected":
            return trial
        if choice.get(trial.layer) == trial.impl:
            return trial
        if trial.layer in choice:
            return replace(trial, outcome="slower", reason=f"{choice[trial.layer]} was selected; {trial.reason}")
        return replace(trial, outcome="inaccurate" if not lossless(trial.impl) else "slower",
                       reason=f"faster alone, but not in the plan; {trial.reason}")  # fmt: skip


def _judged_as(one: Measured) -> tuple[str, str]:
    """What the accuracy of a setting depends on."""
    return one.settings.precision, without(one.settings.method, COMPRESSED)


def _within(compared: Compared, limit: int | None) -> Compared:
    """A comparison that a plan lost if it needs more memory than the limit in bytes."""
    plan = within(compared.plan, limit)
    return compared if plan.outcome != "refused" else replace(compared, plan=plan, faster=False, reason=plan.reason)


def _scale(dense: Measured, layers: Layers) -> float:
    """What a microsecond saved in a layer alone saves in the whole network: all layers take at most its time."""
    together = sum(layers.dense_us.values())
    return min(1.0, _time(dense) / together) if together else 1.0


def _time(one: Measured) -> float:
    return one.timing.median_us if one.timing else float("inf")


def _scored(parts: Material, subject: Subject) -> bool:
    """Whether outputs hold class scores of real labels."""
    if parts.learn.name == "synthetic":
        return False
    try:
        dense = subject.at(subject.dense, Settings("fp32", "nchw", "eager")).eval()
        batches = list(parts.ordered(parts.calibration, 2))[:1]
        accuracy(dense, batches, subject.device, "fp32", parts.classes)
    except UsageError:
        return False
    return True
