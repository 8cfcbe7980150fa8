"""The batched multi-agent environment protocol that env managers step, and the error that says which environment failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from envs.specs import Actions, BehaviorSpec, Steps

if TYPE_CHECKING:
    from envs.randomization import Samplers


class EnvFault(RuntimeError):
    """An environment raised, died, blocked or produced a value that must not be learnt from.

    `str` of it begins with what happened in the user's own words (exception type, message, file and line in their
    file), then says where (env, episode, step, last action) and ends with the user's traceback.

    Attributes:
        message: what happened; an exception as ``"ValueError: boom-42"``.
        env_index: index of the environment among all environments of the run; None before one exists.
        episode: episode of that environment, counted from 0 and on through a resume; None outside of an episode.
        step: calls to ``step`` in this episode, counted from 1; 0 at a reset.
        last_action: the environment-space action of that step as plain numbers; None at a reset.
        user_traceback: traceback text of the user's exception without the frames of this package, or ``""``.
        restartable: a fresh start may help: the user's code raised, its process died, or a step blocked. Not where a value or a mask was
            refused, parameters cannot be given, the environment could not be made in the first place, or a limit of restarts was hit.
        remark: a sentence shown behind the place, or ``""``.
    """

    def __init__(
        self,
        message: str,
        *,
        env_index: int | None = None,
        episode: int | None = None,
        step: int | None = None,
        last_action: Any = None,
        user_traceback: str = "",
        restartable: bool = False,
        remark: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.env_index = env_index
        self.episode = episode
        self.step = step
        self.last_action = last_action
        self.user_traceback = user_traceback
        self.restartable = restartable
        self.remark = remark

    def located(self, env_index: int, episode: int | None, step: int | None, last_action: Any) -> EnvFault:
        """The same fault with the place where it happened."""
        return EnvFault(self.message, env_index=env_index, episode=episode, step=step, last_action=last_action,
                        user_traceback=self.user_traceback, restartable=self.restartable, remark=self.remark)

    def final(self, remark: str = "") -> EnvFault:
        """The same fault as one that no restart follows, with a `remark` if there is one to make."""
        fault = self.located(self.env_index, self.episode, self.step, self.last_action)
        fault.restartable, fault.remark = False, remark or self.remark
        return fault

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as type(*args); keyword arguments need the state, which is copied into __dict__.
        return type(self), (self.message,), self.__dict__

    def __str__(self) -> str:
        lines = [self.message]
        if self.env_index is not None:
            where = f"env {self.env_index}"
            if self.episode is not None:
                where += f", episode {self.episode}, step {self.step}"
            if self.last_action is not None:
                where += f", last action {self.last_action}"
            lines.append(where)
        if self.remark:
            lines.append(self.remark)
        if self.user_traceback:
            lines.append(self.user_traceback.rstrip())
        return "\n".join(lines)


class BatchedEnv(Protocol):
    """Many environments behind one object. An env manager loops ``poll`` → policy → ``act``.

    Which environments answer a `poll` is the implementation's choice: all of them (inline, native vector
    environments), or whichever are ready (threads, processes), so that a slow one never holds the fast ones.

    Attributes:
        behaviors: behavior name -> spec; known after construction.
        num_slots: behavior name -> how many agent slots there are at most (agent ids are below it).
        stepping: ``"native"``, ``"inline"``, ``"threads"`` or ``"processes"``: how it really steps.
    """

    behaviors: dict[str, BehaviorSpec]
    num_slots: dict[str, int]
    stepping: str

    def reset(self) -> None:
        """Start a new episode in every environment; unfinished ones are forgotten. The next `poll` brings first decisions."""

    def poll(self, timeout_s: float) -> dict[str, Steps]:
        """Steps of the environments that are ready, by behavior; waits for at least one, up to `timeout_s`.

        Returns an empty dict when nothing became ready in time, or when no environment is busy or has news.

        Raises:
            EnvFault: an environment raised, died, blocked, or produced a non-finite value; says which, at which episode and step. One
                that is started anew by itself raises nothing.
        """

    def act(self, behavior: str, agent_id: np.ndarray, actions: Actions) -> None:
        """Give agents that are waiting for a decision their policy-space actions and let their environments step.

        Args:
            agent_id: int64 ``[n]``, a subset of the agents whose decision steps were delivered and not yet answered.
            actions: policy-space actions of those agents, in the same order.
        """

    @property
    def in_flight(self) -> int:
        """Agents that were given an action whose result has not been delivered by `poll` yet."""

    def state(self) -> dict[str, Any]:
        """JSON-able position of every seed stream, so that a resumed run continues the streams and never repeats them."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state`; call before `reset`."""

    def running_state(self) -> dict[str, Any] | None:
        """Everything of the running episodes, for `envs.packing`; None where they cannot be gone on with or a step is under way.

        Raises:
            EnvFault: a ``get_state`` of the user's failed.
        """

    def load_running_state(self, state: dict[str, Any]) -> None:
        """Go on with the episodes of `state` in place of a `reset`; the agents wait for what they waited for then.

        Raises:
            EnvFault: a ``set_state`` of the user's failed, or is not there any more.
        """

    def set_parameters(self, parameters: Samplers, lesson: int = 0) -> None:
        """From its next reset on, each environment draws `parameters` for each of its episodes; see `envs.randomization`.

        Args:
            parameters: name -> sampler; all of them, what was set before is forgotten.
            lesson: number that the episodes are tagged with (see `lesson_of`): of a curriculum's lesson, or of its changes.

        Raises:
            ParameterError: these environments cannot be given parameters.
        """

    def lesson_of(self, behavior: str) -> np.ndarray:
        """int64 ``[slots]``: under which lesson number the running episode of each slot began, as of the last `poll`.

        An episode's end and the next first decision may come in one message; to know the lesson of what ended, remember it from
        the message that brought the episode's first decision.
        """

    def take_restarts(self) -> list[EnvFault]:
        """Faults of environments that were started anew since the last call, with their places and a remark that says how often; see
        `Steps.lost` for their agents.

        Always empty where single environments are not restarted: without restart limits, and unless each has a process.
        """

    def close(self) -> None:
        """Close every environment and end every thread and process that belongs to it."""
