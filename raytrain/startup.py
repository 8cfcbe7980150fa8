"""The table that says, before training, what one behavior sees and does and how."""

from __future__ import annotations

from envs import atari
from envs.factories import EnvFactory
from envs.specs import ActionSpec, ObservationSpec, path_text
from raytrain.collector import TAPE_ROWS
from raytrain.config_text import network_layers
from raytrain.plan import Plan
from trainers.architecture import Architecture, ImageInput, VectorInput
from trainers.networks import body_width
from trainers.settings import BehaviorSettings, NetworkSettings, OwnTrainerSettings, SACSettings
from trainers.signal_settings import GAILSettings, ModelSignalSettings, OwnSignalSettings
from trainers.trajectory import row_bytes

_SPACES = {"box": "Box", "discrete": "Discrete", "multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}


def startup_rows(plan: Plan) -> list[tuple[str, str]]:
    """(name, text) rows, one for each item: observations, what is put around the environment, actions, masks, networks, memory, engine.

    The parts of a Tuple or Dict of actions have rows of their own, named by their place: ``mapping[0]``, ``mapping['arm'][1]``.
    """
    arch = plan.architecture
    rows = [*_observations(plan, arch), *_wrappers(plan), *_parameters(plan), *_actions(plan)]
    masked = f"given by the environment for {plan.spec.action.choices} choices; what is not allowed has probability 0"
    rows.append(("mask", masked if plan.spec.action.masked else "none"))
    rows.append(("network", _network(plan, arch)))
    rows.append(("memory", _memory(plan, arch)))
    rows.append(("acting", plan.policy().engine))
    if plan.settings.trainer_type != "bc":
        rows += _reward_signals(plan.settings)
        rows += _self_play(plan)
    if isinstance(plan.settings, SACSettings):
        rows.append(("replay buffer", _replay(plan)))
    if arch.images and plan.settings.trainer_type != "bc":
        rows += _rows_of_images(plan, arch)
    return rows


def _self_play(plan: Plan) -> list[tuple[str, str]]:
    """Which sides there are, and when they change."""
    if not plan.teams:
        return []
    one, per = plan.settings.self_play, {team: plan.teams.count(team) for team in sorted(set(plan.teams))}
    sides = ", ".join(f"team {team} ({_count(n, 'agent')})" for team, n in per.items())
    swaps = f"{one.swaps_per_team_change:g} draws a team change" if one.swaps_per_team_change else f"a draw each {one.steps_per_swap(0, 1, 1):,.0f} steps of opponents"
    against = f"{one.play_against_latest_model_ratio:.0%} of them"
    return [("self-play", f"{sides}; learns for {one.steps_per_team(plan.settings.max_steps):,} agent steps, then the next team"),
            ("opponents", f"of the last {one.window} snapshots, one each {one.save_steps:,} agent steps; {swaps}, {against} the policy as it is")]


# -- observations ------------------------------------------------------------------------------------------------------


def _observations(plan: Plan, arch: Architecture) -> list[tuple[str, str]]:
    vectors, images = ({part.name: part for part in parts} for parts in (arch.vectors, arch.images))
    rows = []
    for o in plan.spec.observations:
        taken = _image(images[o.name], arch) if o.name in images else _vector(o, vectors[o.name])
        rows.append((f"observation {o.name}", f"{_observation_space(o)} → {taken}"))
    return rows + [(f"observation {name}", "left out: text, which networks cannot take in") for name in plan.spec.left_out]


def _observation_space(o: ObservationSpec) -> str:
    """The space as it was, and the dtype in which it is stored."""
    if o.kind == "categorical":
        size = str(o.choices[0]) if len(o.choices) == 1 else f"[{_some(o.choices)}]"
        start = f", start {_some(o.starts)}" if any(o.starts) else ""
        return f"{'Discrete' if o.shape == (1,) else 'MultiDiscrete'}({size}{start}) {o.dtype}"
    return f"{'MultiBinary' if o.kind == 'binary' else 'Box'} {o.shape} {o.dtype}"


def _vector(o: ObservationSpec, part: VectorInput) -> str:
    if o.kind == "categorical":
        return f"one-hot, {_count(part.width, 'number')}"
    numbers = _count(part.width, "number") + (", flattened" if len(o.shape) > 1 else "")
    if o.kind == "binary":
        return f"{numbers}, 0 or 1"
    return f"{numbers}, {'normalised' if part.normalized else 'as it is' if part.width == 1 else 'as they are'}"


def _image(image: ImageInput, arch: Architecture) -> str:
    parts = [f"image of {image.height} × {image.width} pixels, {_channels(image)}", "divided by 255" if image.scale else "values as they are"]
    if image.is_ambiguous:
        parts.insert(1, f"a guess, since the first axis is as long as the last: set observations.{image.name}.channels")
    parts.append(f"encoder {image.encoder}" if arch.model is None else f"model {arch.model.factory}")
    return ", ".join(parts)


def _channels(image: ImageInput) -> str:
    stacked = dict(zip(image.layout, image.shape, strict=True)).get("S")
    count = image.channels if stacked is None else image.channels // stacked
    where = "" if "C" not in image.layout else " first" if image.layout.index("C") < image.layout.index("H") else " last"
    return _count(count, "channel") + where + (f" × {_count(stacked, 'frame')}" if stacked else "")


def _wrappers(plan: Plan) -> list[tuple[str, str]]:
    """What is put around the environment, if anything is."""
    options, parts = plan.env_options, []
    factory = EnvFactory(plan.env, plan.env_kwargs, plan.import_dirs, options)
    if factory.is_preprocessed_atari:
        parts.append(atari.describe(plan.env.rpartition(":")[2], plan.env_kwargs))
    if options.action_repeat > 1:
        parts.append(f"each action for {options.action_repeat} steps of the environment, rewards summed up")
    if options.frame_stack > 1:
        parts.append(f"the newest {options.frame_stack} observations together, on a new first axis, oldest first")
    return [("preprocessing", "; ".join(parts))] if parts else []


def _parameters(plan: Plan) -> list[tuple[str, str]]:
    """How each parameter of the environment is drawn."""
    rows = []
    for name, given in plan.parameters.items():
        text = str(given)
        if isinstance(given, tuple):
            text = f"{_count(len(given), 'lesson')}, the first ({given[0].name}): {given[0].value}"
        rows.append((f"parameter {name}", text))
    return rows


# -- actions -----------------------------------------------------------------------------------------------------------


def _actions(plan: Plan) -> list[tuple[str, str]]:
    settings, action = plan.settings, plan.spec.action
    use_sde = getattr(settings.hyperparameters, "use_sde", False)
    parts, rows = [(path_text(part.path), part.action) for part in action.parts], []
    if parts:
        container = "Tuple" if isinstance(action.parts[0].path[0], int) else "Dict"
        rows.append(("action", f"{container}, parts {', '.join(place for place, _ in parts)}, joint log-probability"))
    for place, part in parts or [("", action)]:
        rows += [
            (f"action{place}", _action_space(part)), (f"distribution{place}", _distribution(part, settings.trainer_type, use_sde)),
            (f"mapping{place}", _mapping(part)),
        ]
    return rows


def _action_space(action: ActionSpec) -> str:
    size = _count(action.continuous_size, "dimension") if action.kind == "box" else f"branches of {_some(action.discrete_branches)}"
    return f"{_SPACES[action.kind]}, {size}, {action.dtype}"


def _distribution(action: ActionSpec, trainer_type: str, use_sde: bool) -> str:
    if action.kind != "box":
        return "categorical" if len(action.discrete_branches) == 1 else "categorical per branch, joint log-probability"
    if trainer_type == "bc":
        return "Gaussian, mean cloned, standard deviation as it begins (initial_std); samples clipped to [-1, 1] for the environment only"
    if trainer_type != "sac":
        return "Gaussian, standard deviation learnt, the same in every state; samples clipped to [-1, 1] for the environment only"
    if use_sde:
        return "tanh-squashed Gaussian, generalized state-dependent exploration"
    return "tanh-squashed Gaussian, standard deviation depends on the state"


def _mapping(action: ActionSpec) -> str:
    if action.kind == "box":
        pairs = [f"[{low:g}, {high:g}]" for low, high in zip(action.low, action.high)]
        return f"[-1, 1] → {pairs[0] if len(set(pairs)) == 1 else _some(pairs)}"
    if any(action.starts):
        return f"index + start ({_some(action.starts)})"
    return "index as it is"


# -- networks ----------------------------------------------------------------------------------------------------------


def _network(plan: Plan, arch: Architecture) -> str:
    if plan.settings.trainer_type == "sac":
        critics = "actor apart from twin critics with target networks"
    elif plan.settings.trainer_type == "bc":
        critics = "an actor, no critic"
    elif isinstance(plan.settings, OwnTrainerSettings):
        critics = "an actor, and what the trainer has besides"
    elif plan.settings.hyperparameters.shared_critic:
        critics = "one body for actor and critic"
    else:
        critics = "actor and critic apart"
    return f"{_body(plan.settings.network_settings, arch)}, {critics}, float32"


def _body(network: NetworkSettings, arch: Architecture) -> str:
    """Dense layers, and what they stand on where that is more than the numbers of the observations."""
    if arch.model is not None:
        return f"{network_layers(network)}, {_count(body_width(arch), 'output')}"
    dense = network_layers(network)
    if not arch.images:
        return dense
    numbers = f" and {_count(arch.vector_width, 'number')}" if arch.vector_width else ""
    return f"{_count(len(arch.images), 'encoder')} of {arch.image_units}{numbers}, {dense}"


def _memory(plan: Plan, arch: Architecture) -> str:
    memory = arch.memory
    if memory is None:
        return "none"
    text = f"LSTM of {memory.units} units (memory_size {memory.size}), learnt in sequences of {memory.sequence_length} agent steps"
    if plan.settings.trainer_type == "sac" and memory.burn_in:
        text += f" after {memory.burn_in} that only warm the critics' memory up"
    return text


def _replay(plan: Plan) -> str:
    hyper = plan.settings.hyperparameters
    saved = "saved with each checkpoint" if hyper.save_replay_buffer else "not saved (save_replay_buffer)"
    return f"{hyper.buffer_size:,} frames, {_bytes(plan.replay_bytes())} in the trainer, {saved}"


def _reward_signals(settings: BehaviorSettings) -> list[tuple[str, str]]:
    """What the agent is paid for, and what it imitates besides."""
    rows = []
    for name, signal in settings.reward_signals.active().items():
        text = f"× {signal.strength:g}, discount {signal.gamma:g}" if signal.strength else "shown, not learnt from (strength 0)"
        if isinstance(signal, ModelSignalSettings):
            network = signal.network_settings
            text += f", learning rate {signal.learning_rate:g}, {network.num_layers} × {network.hidden_units} {network.activation}"
        if isinstance(signal, GAILSettings):
            text += f", demonstrations {_short(signal.demo_path)}"
        if isinstance(signal, OwnSignalSettings):
            text += f", {signal.signal}"
        rows.append((f"reward {name}", text))
    cloning = settings.behavioral_cloning
    if cloning is not None:
        until = f", falling to 0 over {cloning.steps:,} agent steps" if cloning.steps else ""
        rows.append(("cloning", f"× {cloning.strength:g} of the learning rate{until}, demonstrations {_short(cloning.demo_path)}"))
    return rows


def _short(path: str) -> str:
    return path.rpartition("/")[2] or path


def _rows_of_images(plan: Plan, arch: Architecture) -> list[tuple[str, str]]:
    """What images cost: nobody expects it from the number of steps."""
    row, steps = row_bytes(plan.spec, arch.memory_size), max(TAPE_ROWS, plan.settings.time_horizon)
    tapes = f"{plan.agents} × {steps} steps of {_bytes(row)}, and those on their way"
    rows = [("trajectories", f"up to {_bytes(plan.collecting_bytes())} in each env manager: {tapes}")]
    if plan.settings.trainer_type != "sac":
        rows.append(("buffer", f"up to {plan.max_rows():,} agent steps, {_bytes(plan.buffer_bytes())} in the trainer"))
    return rows


# -- words -------------------------------------------------------------------------------------------------------------


def _some(values: tuple | list) -> str:
    return ", ".join(map(str, values[:6])) + (f", … ({len(values)})" if len(values) > 6 else "")


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"
