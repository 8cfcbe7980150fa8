"""The contract suite over every kind of stepping and every autoreset mode."""

from __future__ import annotations

import numpy as np

from envs.base import BatchedEnv
from envs.copies import CopiesEnv
from envs.factories import EnvFactory
from envs.gymnasium_env import make_batched_env
from envs.processes import ProcessWorkers
from tests.envs.contract import LENGTH, NUM_ENVS, BatchedEnvContract


class CopiesContract(BatchedEnvContract):
    """Copies in the stepping mode that the class names."""

    wait_for_all = False
    end = "terminated"

    def make(self, seed: int = 1) -> BatchedEnv:
        kwargs = {"length": LENGTH, "end": self.end, "vary": True}
        return make_batched_env("envs.toy:CountObs", kwargs, NUM_ENVS, self.stepping, np.random.SeedSequence(seed),
                                wait_for_all=self.wait_for_all)


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
