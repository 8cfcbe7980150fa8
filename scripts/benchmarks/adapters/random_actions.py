"""The slow environments stepped as ``yaml/benchmarks/slow-envs.yaml`` steps them, with random actions and no learning."""

from __future__ import annotations

import sys
from pathlib import Path

import metered
import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))


def main() -> None:
    from envs.gymnasium_env import make_batched_env
    from envs.specs import Actions
    from raytrain.config import load_config

    settings = load_config(ROOT / "yaml" / "benchmarks" / "slow-envs.yaml").env_settings
    env = make_batched_env("metered:make_env", {}, settings.num_envs, settings.stepping, np.random.SeedSequence(metered.seed()))
    metered.info(lib="envs", num_envs=settings.num_envs, stepping=env.stepping)
    rng = np.random.default_rng(metered.seed())
    env.reset()
    while True:
        for behavior, steps in env.poll(0.25).items():
            agents = steps.decision.agent_id
            choices = rng.integers(0, 2, (len(agents), 1), dtype=np.int32)
            if len(agents):
                env.act(behavior, agents.copy(), Actions(np.empty((len(agents), 0), np.float32), choices))


if __name__ == "__main__":
    main()
