"""The contract suite over every kind of stepping and every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.base import BatchedEnv
from envs.copies import CopiesEnv
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.processes import ProcessWorkers
from envs.toy import ACTION_SPACES
from envs.toy_audit import PIXEL_SPACES
from tests.envs.contract import LENGTH, NUM_ENVS, Auditor, BatchedEnvContract, the_behavior


class CopiesContract(BatchedEnvContract):
    """Copies in the stepping mode that the class names."""

    wait_for_all = False
    end = "terminated"

    def make(self, seed: int = 1) -> BatchedEnv:
        kwargs = {"length": LENGTH, "end": self.end, "vary": True}
        return make_batched_env("envs.toy:CountObs", kwargs, NUM_ENVS, self.stepping, np.random.SeedSequence(seed),
                                wait_for_all=self.wait_for_all)


class EchoContract(CopiesContract):
    """Nested observations of every kind, and masks from the source that the class names."""

    is_echo = True
    end = "truncated"
    masks = "none"
    structure = "dict"

    def make(self, seed: int = 1) -> BatchedEnv:
        kwargs = {"length": LENGTH, "end": self.end, "vary": True, "structure": self.structure, "masks": self.masks, "same_arrays": True}
        return make_batched_env("envs.toy_audit:EchoObs", kwargs, NUM_ENVS, self.stepping, np.random.SeedSequence(seed),
                                wait_for_all=self.wait_for_all, masked=self.masks == "info")


class TestInline(CopiesContract):
    stepping = "inline"


class TestInlineTruncated(CopiesContract):
    stepping = "inline"
    end = "truncated"


class TestThreads(CopiesContract):
    stepping = "threads"


class TestThreadsInLockStep(CopiesContract):
    stepping = "threads"
    wait_for_all = True


class TestProcesses(CopiesContract):
    stepping = "processes"


class TestProcessesInLockStep(CopiesContract):
    stepping = "processes"
    wait_for_all = True


class TestInlineEcho(EchoContract):
    stepping = "inline"


class TestInlineEchoTuple(EchoContract):
    stepping = "inline"
    structure = "tuple"
    masks = "method"
    masked = True


class TestInlineEchoMasksInInfo(EchoContract):
    stepping = "inline"
    masks = "info"
    masked = True


class TestInlineEchoMasksInKey(EchoContract):
    stepping = "inline"
    masks = "key"
    masked = True


class TestInlineEchoTerminated(EchoContract):
    stepping = "inline"
    masks = "key"
    masked = True
    end = "terminated"


class TestThreadsEcho(EchoContract):
    stepping = "threads"
    masks = "method"
    masked = True


class TestProcessesEcho(EchoContract):
    stepping = "processes"
    masks = "info"
    masked = True


class TestSpawnedProcesses:
    """C100: what Windows and macOS do."""

    def test_every_value_is_where_it_belongs(self) -> None:
        factory = EnvFactory("envs.toy:CountObs", {"length": LENGTH, "vary": True})
        env = CopiesEnv(ProcessWorkers(factory, NUM_ENVS, 0, start_method="spawn"), NUM_ENVS, np.random.SeedSequence(1))
        try:
            BatchedEnvContract().test_every_value_is_where_it_belongs(env)
        finally:
            env.close()


class NativeContract(BatchedEnvContract):
    """A user's vector environment with the autoreset mode that the class names."""

    stepping = "native"
    mode = ""
    copy = True

    def make(self, seed: int = 1) -> BatchedEnv:
        kwargs = {"autoreset_mode": self.mode, "length": LENGTH, "vary": True, "copy": self.copy}
        return make_batched_env("envs.toy:count_vector", kwargs, NUM_ENVS, "auto", np.random.SeedSequence(seed))


class TestNextStep(NativeContract):
    mode = "NextStep"


class TestSameStep(NativeContract):
    mode = "SameStep"


class TestDisabled(NativeContract):
    mode = "Disabled"


class TestNextStepWithoutCopies(NativeContract):
    mode = "NextStep"
    copy = False


class TestSameStepWithoutCopies(NativeContract):
    mode = "SameStep"
    copy = False


class NativeEchoContract(BatchedEnvContract):
    """The same in a vector environment."""

    stepping = "native"
    is_echo = True
    mode = ""
    masks = "none"
    structure = "dict"

    def make(self, seed: int = 1) -> BatchedEnv:
        kwargs = {"autoreset_mode": self.mode, "length": LENGTH, "vary": True, "masks": self.masks, "structure": self.structure}
        return make_batched_env("envs.toy_audit:echo_obs_vector", kwargs, NUM_ENVS, "auto", np.random.SeedSequence(seed),
                                masked=self.masks == "info")


class TestNextStepEcho(NativeEchoContract):
    mode = "NextStep"


class TestNextStepEchoMasksInInfo(NativeEchoContract):
    mode = "NextStep"
    masks = "info"
    masked = True


class TestNextStepEchoMasksInKey(NativeEchoContract):
    mode = "NextStep"
    masks = "key"
    masked = True


class TestSameStepEchoTuple(NativeEchoContract):
    mode = "SameStep"
    structure = "tuple"
    masks = "method"
    masked = True
    last_mask_is_known = False


class TestSameStepEchoMasksInInfo(NativeEchoContract):
    mode = "SameStep"
    masks = "info"
    masked = True


class TestDisabledEcho(NativeEchoContract):
    mode = "Disabled"
    masks = "key"
    masked = True


TOY_WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("envs.toy:ConstReward", {}), ("envs.toy:TwoStepTerminal", {}), ("envs.toy:CountObs", {}), ("envs.toy:RandomObs", {}),
    *(("envs.toy:EchoAction", {"space": key}) for key in ACTION_SPACES),
    ("envs.toy:NaNAt", {"n": 1000}), ("envs.toy:CrashAt", {"n": 1000}), ("envs.toy:SlowStep", {"sleep_s": 0.0}),
    *(("envs.toy:SimpleEnvironment", {"action": action}) for action in ("discrete", "continuous", "hybrid")),
    ("envs.toy:SimpleEnvironment", {"num_vector": 2, "num_visual": 2, "vector_size": 3}),
    ("envs.toy:SimpleEnvironment", {"num_vector": 0, "num_visual": 1, "vis_obs_size": [36, 36, 3]}),
    ("envs.toy_memory:MemoryEnvironment", {"num_visual": 1}), ("envs.toy_memory:Recall", {"vary": True}),
    ("envs.toy_memory:Recall", {"action": "continuous"}),
    *(("envs.toy_masks:MaskedBandit", {"choices": choices, "masks": masks})
      for choices in (5, [3, 4]) for masks in ("none", "info", "key", "method")),
    ("envs.toy_audit:MutatingObs", {}), *(("envs.toy_audit:StepPixels", {"image": image}) for image in PIXEL_SPACES),
]


@pytest.mark.parametrize(("env", "kwargs"), TOY_WORLDS, ids=str)
def test_every_toy_world_keeps_to_the_protocol(env: str, kwargs: dict[str, Any]) -> None:
    """Whatever its observations, actions and masks are: dtypes, shapes, one choice in every branch, and no step without an action."""
    batched = make_batched_env(env, kwargs, 2, "inline", np.random.SeedSequence(1), masked=kwargs.get("masks") == "info")
    try:
        batched.reset()
        auditor = Auditor(batched)
        auditor.run(60, np.random.default_rng(0))
        assert the_behavior(batched)[1].action.masked == (kwargs.get("masks", "none") != "none")
        assert "MaskedBandit" not in env or kwargs["masks"] == "none" or min(r for e in auditor.finished for r in e.reward) >= 0
    finally:
        batched.close()
