"""An evaluator as a Ray actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray

from raytrain.actors import EvaluatorActor
from raytrain.cluster.answers import answer_of
from raytrain.errors import RunFault
from raytrain.evaluation import EVALUATOR, Evaluator, Played

_EVALUATOR_DEATHS = 10


class RemoteEvaluator:
    """An evaluator as a Ray actor, which begins with the first request; see `raytrain.evaluation.EvaluatorHandle`.

    Args:
        place: options of the actor: where it goes, and what it sees there.
    """

    def __init__(self, evaluator: Evaluator, place: Callable[[], dict[str, Any]]) -> None:
        self._evaluator, self._place = evaluator, place
        self._actor: Any = None
        self._calls: list[ray.ObjectRef] = []
        self._requests: list[tuple[Any, ...]] = []  # of those calls
        self._deaths = 0

    def request(self, weights: Mapping[str, Any], versions: Mapping[str, int], parameters: Mapping[str, Any]) -> None:
        self._requests.append((ray.put(dict(weights)), dict(versions), dict(parameters)))
        self._send(self._requests[-1])

    def _send(self, request: tuple[Any, ...]) -> None:
        if self._actor is None:
            self._actor = ray.remote(EvaluatorActor).options(**self._place()).remote(self._evaluator)
        self._calls.append(self._actor.play.remote(*request))

    def poll(self, timeout_s: float) -> list[Played]:
        played = []
        while self._calls and ray.wait(self._calls[:1], timeout=0 if played else timeout_s)[0]:
            try:
                answer = answer_of(EVALUATOR, self._calls[0])
            except RunFault:  # it died: another one plays what is left, the same episodes
                self._deaths += 1
                if self._deaths > _EVALUATOR_DEATHS:
                    raise
                self._actor, self._calls = None, []
                for request in self._requests:
                    self._send(request)
                break
            del self._calls[0], self._requests[0]
            if isinstance(answer, RunFault):
                raise answer
            played.append(answer)
        return played

    def interrupt(self) -> None:
        """Nothing: nobody waits for it then."""

    def close(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor, self._calls, self._requests = None, [], []
