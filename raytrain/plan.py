"""What every part of a run is built from, and the building: the same plain classes for this process and for Ray."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.base import BatchedEnv
from envs.curriculum import Curricula, Lesson
from envs.factories import EnvOptions
from envs.own_code import NETWORK, SAMPLER, SIGNAL, TRAINER, Kind, look_in
from envs.randomization import OwnSampler, Sampler, Samplers
from envs.restarts import RestartLimits
from envs.specs import BehaviorSpec
from raytrain.collector import TAPE_ROWS
from raytrain.credit import CreditBook, ReplayCredit
from raytrain.env_manager import EnvManager
from raytrain.lane import item_rows
from raytrain.matches import Matches
from raytrain.messages import Orders, PolicyMessage
from raytrain.queues import PolicySink, PolicySource, TrajectorySink, TrajectorySource
from raytrain.referee import RefereePort
from raytrain.replay_chunks import ChunkReader, ReplayFiles, ReplayReader, ReplayWriter, read_replay
from raytrain.stage import Stage
from raytrain.world_desk import WorldDesk
from trainers.architecture import Architecture, architecture
from trainers.networks import policy_layout
from trainers.policy import Policy
from trainers.registry import first_weights, policy_distribution
from trainers.replay_buffer import ReplayBuffer
from trainers.self_play import SnapshotPool
from trainers.settings import BCSettings, BehaviorSettings, OwnTrainerSettings, SACSettings
from trainers.trainer import TrainerState, Weights
from trainers.trajectory import row_bytes
from trainers.update_ratio import UPDATES_PER_CALL

if TYPE_CHECKING:
    from raytrain.trainer_loop import TrainerLoop

ROW_COPIES = 3
"""On-policy, a row lies in the item it came in, among the rows of the update, and in the tensors of its program."""
UPDATES_AHEAD = 2 * UPDATES_PER_CALL
"""Off-policy, env managers collect at most for this many updates ahead: two calls of the compiled program."""
STEPS_AHEAD = 1_024
"""Nor for more agent steps than this ahead: with few updates, news would be rare otherwise, and the end be overshot."""

_ROLES = {"weights": 0, "trainer": 1, "env_manager": 2, "envs": 3, "evaluation": 4, "referee": 5}


def seed_branch(seed: int, role: str, *index: int) -> np.random.SeedSequence:
    """The branch of the run's seed tree for one role and index; branches are independent of one another (never ``seed + i``)."""
    return np.random.SeedSequence(seed, spawn_key=(_ROLES[role], *index))


@dataclass(frozen=True)
class Start:
    """Where a behavior starts from: nothing, a checkpoint (``--resume``) or another run's weights (``--initialize-from``).

    Attributes:
        state: exact trainer state to continue from.
        weights: network weights (and normaliser) to begin with at step 0.
        policy: what policies act with first.
        version: policy version of `policy`.
        env_steps: counted so far.
        elapsed_s: for which this behavior has been trained so far.
        self_play: frozen policies to continue with.
        orders: what worlds play first; the same for all behaviors, None where nothing of it ever changes.
        serial: of the first policy message.
        epoch: how often the trainer was started before in this run.
        incarnations: how often each env manager there is now was started before; None for those of the plan, never.
        ledger: `raytrain.ledger.Ledger.state` of the checkpoint, for a trainer that takes over from one that died in this run.
        ended: env managers of this run that died: (name, incarnation, agent steps produced).
        rolled_back: agent steps consumed in vain by trainers that died.
        loop: `raytrain.trainer_loop.TrainerLoop.state` of the checkpoint.
        replay: the replay buffer that belongs to `state`, in the files of the checkpoint; None without one.
    """

    policy: Weights
    version: int = 0
    state: TrainerState | None = None
    weights: TrainerState | None = None
    env_steps: int = 0
    elapsed_s: float = 0.0
    self_play: TrainerState | None = None
    orders: Orders | None = None
    serial: int = 0
    epoch: int = 0
    incarnations: dict[str, int] | None = None
    ledger: dict[str, Any] | None = None
    ended: tuple[tuple[str, int, int], ...] = ()
    rolled_back: int = 0
    loop: dict[str, Any] | None = None
    replay: ReplayFiles | None = None


@dataclass(frozen=True)
class Plan:
    """One behavior of a run: picklable, without Ray and without TensorFlow. What concerns the whole run is the same in all of its plans.

    Attributes:
        agents: agents of the behavior that act at once in one env manager, at most.
        place: 0, 1, … among the behaviors of the run, for its branch of the seed tree.
        behaviors: number of behaviors of the run.
        managers: names of the env managers.
        import_dirs: folders from which the user's own modules may be imported: environment, Keras model.
        env: empty where everything is learnt from demonstrations.
        lock_step: rounds of equal credit, taken in a fixed order.
        env_options: what is put around each environment.
        parameters: of the environment, name -> how it is drawn, or its lessons.
        teams: with self-play, the team of each of the behavior's agents in one world; empty without.
        restart_limits: of environments with processes of their own; None: they are not started anew.
        most_managers: as many env managers there may be later on, if that is more.
        evaluation_interval: agent steps between evaluations, each of a checkpoint; None where they go with those there are.
    """

    run_id: str
    behavior: str
    spec: BehaviorSpec
    settings: BehaviorSettings | BCSettings
    env: str
    env_kwargs: dict[str, Any]
    num_envs: int
    stepping: str
    step_timeout_s: float | None
    import_dirs: tuple[str, ...]
    seed: int
    managers: tuple[str, ...]
    agents: int
    max_policy_lag: int
    lock_step: bool
    trainer_threads: int = 1
    env_options: EnvOptions = field(default_factory=EnvOptions)
    parameters: dict[str, Sampler | tuple[Lesson, ...]] = field(default_factory=dict)
    place: int = 0
    behaviors: int = 1
    teams: tuple[int, ...] = ()
    evaluation_interval: int | None = None
    most_managers: int = 0
    restart_limits: RestartLimits | None = None

    @property
    def architecture(self) -> Architecture:
        """The networks of the behavior.

        Raises:
            ArchitectureError: the network settings do not suit the observations.
        """
        return architecture(self.spec, self.settings.network_settings)

    @property
    def agents_learning(self) -> int:
        """Agents of the behavior in one environment that learn at once: under self-play those of one team."""
        return max(map(self.teams.count, self.teams)) if self.teams else self.agents // self.num_envs

    def own_seed(self, role: str) -> np.random.SeedSequence:
        """The behavior's own branch of the seed tree for a role that every behavior has."""
        return seed_branch(self.seed, role, *([self.place] if self.place else []))

    def referee_seed(self) -> np.random.SeedSequence:
        """The run's branch of the seed tree for drawing opponents."""
        return seed_branch(self.seed, "referee")

    def snapshot_pool(self, start: Start) -> SnapshotPool | None:
        """Frozen policies to begin with; None without self-play. The controller's and the trainer's agree since both are made here."""
        if not self.teams:
            return None
        pool = SnapshotPool(self.settings.self_play.window, start.policy)
        if start.self_play is not None:
            pool.load_state(start.self_play)
        return pool

    def prepare_imports(self) -> None:
        """Let modules of the user's be imported: trainers, signals, a Keras model."""
        look_in(self.import_dirs)

    def own_code(self) -> list[tuple[Kind, str]]:
        """Trainer, reward signals, network and samplers of the user's own, as the configuration names them."""
        settings = self.settings
        drawn = [one for how in self.parameters.values() for one in (how if isinstance(how, tuple) else (how,))]
        samplers = [one.value if isinstance(one, Lesson) else one for one in drawn]
        found = [(SAMPLER, sampler.sampler) for sampler in samplers if isinstance(sampler, OwnSampler)]
        if isinstance(settings, OwnTrainerSettings):
            found.append((TRAINER, settings.trainer_type))
        if not isinstance(settings, BCSettings):
            found += [(SIGNAL, own.signal) for own in settings.reward_signals.own.values()]
        model = settings.network_settings.model
        return found if model is None else [*found, (NETWORK, model)]

    def prepare(self, threads: int) -> None:
        """Make what is the user's own usable in this process: modules can be imported; for a Keras model TensorFlow has `threads` threads.

        To be called before `policy`, `first_weights` or a trainer is made; does nothing where nothing is the user's own.
        """
        if self.own_code():
            self.prepare_imports()
        if self.settings.network_settings.model is not None and "tensorflow" not in sys.modules:
            from raytrain.tensorflow_setup import set_up_tensorflow

            set_up_tensorflow(threads)

    def credit_book(self, start: Start) -> CreditBook | ReplayCredit:
        """A new book; the controller's and the trainer's agree since both are made here."""
        incarnations = dict.fromkeys(self.managers, 0) if start.incarnations is None else start.incarnations
        managers = dict.fromkeys(incarnations, self.agents)
        hyper = self.settings.hyperparameters
        if isinstance(self.settings, SACSettings):
            # A trainer that resumes knows itself what it wants and owes, and grants as soon as it is there.
            warm_up = max(hyper.buffer_init_steps, hyper.batch_size) if start.state is None else None
            ahead = min(UPDATES_AHEAD * hyper.steps_per_update, STEPS_AHEAD)
            return ReplayCredit(managers, ahead, warm_up, self.lock_step, self.settings.max_steps, start.epoch, incarnations)
        return CreditBook(managers, hyper.buffer_size, self.max_policy_lag, self.lock_step, start.epoch, incarnations)

    def buffer_bytes(self) -> int:
        """Memory that the trainer's rows or its replay buffer take at most (bytes)."""
        hyper = self.settings.hyperparameters
        if isinstance(self.settings, SACSettings):
            # With the copy that is saved; its encoding is one file's at a time.
            return self.replay_bytes() * (2 if hyper.save_replay_buffer else 1)
        return self.max_rows() * row_bytes(self.spec, self.architecture.memory_size) * ROW_COPIES

    def replay_bytes(self) -> int:
        """Memory of a full replay buffer (bytes)."""
        return ReplayBuffer.memory_bytes(self.spec, self.settings.hyperparameters.buffer_size, self.architecture.memory_size)

    def collecting_bytes(self) -> int:
        """Memory that one env manager takes for trajectories at most (bytes): its tapes, and an item on its way."""
        memory_size = self.architecture.memory_size
        tapes = self.agents * max(TAPE_ROWS, self.settings.time_horizon)
        return row_bytes(self.spec, memory_size) * (tapes + min(tapes, item_rows(self.spec, memory_size)))

    def max_rows(self) -> int:
        """Most rows an on-policy update can hold.

        Let n managers of a agents collect with lag limit K. A round of all managers brings at least b = ``buffer_size`` rows and
        fewer than b + 2na: each share is rounded up to whole batches, and its last batch may overshoot; what a manager that died had not
        delivered is rounded up once more. After V <= K updates K + 1 + V rounds were granted and at least V·b of their rows are learnt;
        after more updates at most K + 1 rounds are left.
        """
        rounds, extra = 1 + self.max_policy_lag, 3 * max(len(self.managers), self.most_managers) * self.agents
        return rounds * self.settings.hyperparameters.buffer_size + (rounds + self.max_policy_lag) * extra

    def first_weights(self) -> Weights:
        """The initial weights, made in NumPy so that nobody waits for TensorFlow."""
        return first_weights(self.spec, self.settings, np.random.default_rng(self.own_seed("weights")))

    def first_policy(self) -> Weights:
        """The part of the initial weights that acting needs."""
        layout = policy_layout(self.architecture, policy_distribution(self.settings))
        return {name: tensor for name, tensor in self.first_weights().items() if name in layout}

    def policy(self) -> Policy:
        """A new policy, without weights."""
        noise_steps = self.settings.hyperparameters.sde_steps if isinstance(self.settings, SACSettings) else None
        return Policy(self.spec, self.settings.network_settings, policy_distribution(self.settings), noise_steps)

    def first_message(self, start: Start) -> PolicyMessage:
        """The message that sets the env managers going."""
        pool = self.snapshot_pool(start)
        snapshots = {n: pool.weights(n) for n in start.orders.snapshots_of(self.behavior)} if pool is not None else {}
        credit = self.credit_book(start).open(start.version)
        return PolicyMessage(start.serial, start.version, start.policy, credit, start.orders, snapshots, start.epoch)


def manager_name(index: int) -> str:
    """Of env manager number `index`."""
    return f"env-manager-{index}"


def manager_index(name: str) -> int:
    """Number of the env manager called `name`."""
    return int(name.rsplit("-", 1)[1])


def build_env_manager(
    plans: Sequence[Plan], index: int, sources: Mapping[str, PolicySource], sinks: Mapping[str, TrajectorySink], state: dict | None = None,
    should_stop: Callable[[], bool] = lambda: False, orders: Orders | None = None, incarnation: int = 0, epochs: Mapping[str, int] | None = None,
    record: Path | None = None,
) -> EnvManager:
    """Env manager number `index` of the run with its environments, not started yet.

    Args:
        plans: of all behaviors.
        sources, sinks: behavior name -> its policy mailbox and its trajectory queue.
        orders: what the worlds play first.
        incarnation: how often this env manager was started before.
        epochs: behavior name -> how often its trainer was started before, where that is not never.
        record: file that says what each environment is doing; None: none.
    """
    for plan in plans:
        plan.prepare(threads=1)
    run = plans[0]
    first = orders or Orders(parameters=Curricula(run.parameters).samplers())
    env = make_envs(
        plans, run.num_envs, run.stepping, seed_branch(run.seed, "envs"), index * run.num_envs, wait_for_all=run.lock_step,
        parameters=first.parameters, lesson=first.lesson, restart_limits=run.restart_limits, record=record,
    )
    teams, policies = {plan.behavior: plan.teams for plan in plans if plan.teams}, {plan.behavior: plan.policy for plan in plans}
    manager = EnvManager(
        manager_name(index), env, sources, sinks, {b: new() for b, new in policies.items()}, {p.behavior: p.settings.time_horizon for p in plans},
        seed_branch(run.seed, "env_manager", index, *([incarnation] if incarnation else [])), ship_early=not run.lock_step,
        incarnation=incarnation, should_stop=should_stop, epochs=epochs,
        stage=None if orders is None else Stage(orders, Matches(teams, run.num_envs) if teams else None, {b: policies[b] for b in teams}, max(len(run.managers), run.most_managers) == 1),
    )
    if state is not None:
        manager.load_state(state)
    return manager


def make_envs(
    plans: Sequence[Plan], num_envs: int, stepping: str, seed: np.random.SeedSequence, first_env_index: int = 0, *, wait_for_all: bool,
    parameters: Samplers, own_generators: bool = False, lesson: int = 0, restart_limits: RestartLimits | None = None, record: Path | None = None,
) -> BatchedEnv:
    """Environments of the run; other arguments and errors are those of `envs.gymnasium_env.make_batched_env`.

    Args:
        plans: of all behaviors.
    """
    from envs.gymnasium_env import make_batched_env

    run = plans[0]
    agents = {plan.behavior: plan.settings.agents for plan in plans if getattr(plan.settings, "agents", ())}
    groups = {plan.behavior: plan.settings.groups for plan in plans if getattr(plan.settings, "groups", ())}
    return make_batched_env(
        run.env, run.env_kwargs, num_envs, stepping, seed, first_env_index, run.import_dirs, wait_for_all, run.step_timeout_s,
        run.env_options, _masked(plans), parameters, agents, groups, own_generators, lesson,
        restart_limits, record,
    )


def _masked(plans: Sequence[Plan]) -> bool | list[str]:
    """Whether the only behavior is masked; of several, those that are."""
    return plans[0].spec.action.masked if len(plans) == 1 else [plan.behavior for plan in plans if plan.spec.action.masked]


def build_trainer_loop(
    plan: Plan, start: Start, source: TrajectorySource, sink: PolicySink, referee: RefereePort | None = None,
    replay_writer: ReplayWriter | None = None, replay_reader: Callable[[ReplayFiles], ReplayReader] = ChunkReader,
) -> TrainerLoop:
    """The behavior's trainer and its loop, compiled and ready; imports TensorFlow.

    Args:
        referee: where what worlds play may change.
        replay_writer: where a replay buffer is brought that is saved.
        replay_reader: makes what reads one that was saved.
    """
    from raytrain.tensorflow_setup import set_up_tensorflow
    from raytrain.trainer_loop import TrainerLoop
    from trainers.registry import make_trainer

    set_up_tensorflow(plan.trainer_threads)
    plan.prepare(plan.trainer_threads)
    trainer = make_trainer(plan.spec, plan.settings, plan.own_seed("trainer"), plan.max_rows(), plan.first_weights())
    if start.state is not None:
        trainer.load_state(_with_replay(start.state, start.replay, replay_reader))
    elif start.weights is not None:
        trainer.load_weights(start.weights)
    trainer.published(start.version)
    trainer.compile()
    credit = plan.credit_book(start)
    credit.open(start.version)
    desk = None if referee is None else WorldDesk(plan.behavior, referee, start.orders, plan.settings.self_play, plan.snapshot_pool(start))
    loop = TrainerLoop(
        plan.behavior, trainer, plan.settings, plan.spec, source, sink, credit, version=start.version, serial=start.serial,
        lock_step=plan.lock_step, env_steps=start.env_steps, others=plan.behaviors > 1,
        evaluation_interval=plan.evaluation_interval, desk=desk, replay_writer=replay_writer, epoch=start.epoch, rolled_back=start.rolled_back,
        elapsed_s=start.elapsed_s, state=start.loop,
    )
    loop.go_on_with_ledger(start.ledger, start.ended)
    return loop


def _with_replay(state: TrainerState, replay: ReplayFiles | None, reader: Callable[[ReplayFiles], ReplayReader]) -> TrainerState:
    return state if replay is None else TrainerState({**state.tensors, **read_replay(reader(replay))}, state.scalars)
