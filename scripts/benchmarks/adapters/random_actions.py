"""The environments of a file below ``yaml/`` stepped as it steps them, with random actions and no learning (options: file, one_core)."""

from __future__ import annotations

import metered
import numpy as np
from own_parts import config_of, stay_on_one_core


def main() -> None:
    from envs.gymnasium_env import make_batched_env
    from envs.specs import Actions

    options = metered.options()
    settings = config_of(options["file"], "make_env").env_settings
    stepping = settings.stepping
    if options.get("one_core"):
        stay_on_one_core()
        stepping = "inline"
    env = make_batched_env("metered:make_env", {}, settings.num_envs, stepping, np.random.SeedSequence(metered.seed()))
    metered.info(lib="envs", num_envs=settings.num_envs, stepping=env.stepping)
    ((behavior, spec),) = env.behaviors.items()
    rng, size, branches = np.random.default_rng(metered.seed()), spec.action.continuous_size, np.array(spec.action.discrete_branches, np.int64)
    env.reset()
    while True:
        for steps in env.poll(0.25).values():
            agents = steps.decision.agent_id
            n = len(agents)
            if n:
                choices = rng.integers(0, branches, (n, len(branches)), dtype=np.int32) if len(branches) else np.empty((n, 0), np.int32)
                env.act(behavior, agents.copy(), Actions(rng.uniform(-1.0, 1.0, (n, size)).astype(np.float32), choices))


if __name__ == "__main__":
    main()
