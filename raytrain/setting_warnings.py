"""Warnings about a behavior's settings: what can be run but is probably not meant, one sentence each."""

from __future__ import annotations

from trainers.settings import AnyBehaviorSettings, BCSettings, PPOHyperparameters, SACHyperparameters, SACSettings
from trainers.signal_settings import ModelSignalSettings


def behavior_warnings(name: str, settings: AnyBehaviorSettings) -> list[str]:
    """One sentence for each span that the run ends before reaching, and for each key that another one leaves without effect."""
    if isinstance(settings, BCSettings):
        return [f"{name}: {sentence}" for sentence in _network_warnings(settings)]
    values, spans = settings.hyperparameters, {}
    if isinstance(values, SACHyperparameters):
        spans["hyperparameters.buffer_init_steps"] = (values.buffer_init_steps, "no update happens")
    else:
        spans["hyperparameters.buffer_size"] = (values.buffer_size, "no update happens")
    if settings.self_play is not None:
        spans["self_play.save_steps"] = (settings.self_play.save_steps, "the policy of the start is the only snapshot")
    spans["summary_freq"] = (settings.summary_freq, "no summary is written before the end")
    spans["checkpoint_interval"] = (settings.checkpoint_interval, "nothing is saved between start and end")
    found = [] if settings.behavioral_cloning or any(s.strength for s in settings.reward_signals.active().values()) else [
        f"{name}: nothing is learnt: every reward signal has strength 0 and there is no behavioral_cloning."
    ]
    found += [
        f"{name}: {key}={span:,} is larger than max_steps={settings.max_steps:,}: {consequence}."
        for key, (span, consequence) in spans.items()
        if span > settings.max_steps
    ]
    unused = _unused(settings) if isinstance(values, SACHyperparameters) else []
    return found + [f"{name}: {sentence}" for sentence in [*unused, *_network_warnings(settings)]]


def _network_warnings(settings: AnyBehaviorSettings) -> list[str]:
    """One sentence for each network setting that does less than it says, as far as that shows without the observations."""
    found, network, values = [], settings.network_settings, settings.hyperparameters
    if network.model_kwargs and network.model is None:
        found.append("network_settings.model_kwargs are not used: network_settings.model is null.")
    memory = network.memory
    if memory is None:
        return found
    length = memory.sequence_length
    if isinstance(settings, BCSettings) and memory.burn_in is not None:
        found.append(f"network_settings.memory.burn_in={memory.burn_in} is not used: bc has no critics.")
    if isinstance(values, PPOHyperparameters):
        if memory.burn_in is not None:
            found.append(f"network_settings.memory.burn_in={memory.burn_in} is not used: ppo keeps the critic's memory instead.")
        if length > settings.time_horizon:
            found.append(
                f"network_settings.memory.sequence_length={length} is larger than time_horizon={settings.time_horizon}: no sequence is "
                "longer than a trajectory."
            )
    if getattr(values, "batch_size", length) < length:
        found.append(
            f"hyperparameters.batch_size={values.batch_size} is smaller than network_settings.memory.sequence_length={length}: a "
            "minibatch is one sequence."
        )
    return found


def _unused(settings: SACSettings) -> list[str]:
    """One sentence for each key that SAC does not use."""
    found, values, signals = [], settings.hyperparameters, settings.reward_signals.active()
    models = {name: signal for name, signal in signals.items() if isinstance(signal, ModelSignalSettings)}
    if values.reward_signal_steps_per_update is not None and len(signals) == 1:
        key = f"hyperparameters.reward_signal_steps_per_update={values.reward_signal_steps_per_update:g}"
        found.append(f"{key} is not used: the extrinsic reward signal has no network to update.")
    found += [
        f"reward_signals.{name}.num_epoch={signal.num_epoch} is not used: sac goes by hyperparameters.reward_signal_steps_per_update."
        for name, signal in models.items() if signal.num_epoch is not None
    ]
    users = {"use_sde": ("sde_steps", "sde_initial_log_std"), "learn_entcoef": ("target_entropy", "target_entropy_scale")}
    for user, keys in users.items():
        for key in keys:
            value = getattr(values, key)
            if not getattr(values, user) and value != SACHyperparameters.model_fields[key].default:
                found.append(f"hyperparameters.{key}={value:g} is not used: {user} is false.")
    return found
