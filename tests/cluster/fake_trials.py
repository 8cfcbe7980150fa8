"""`raytrain tune` with trials that train nothing and do what ``plan.json`` beside the sweep says: python -m tests.cluster.fake_trials SWEEP.yaml …

Each trial's plan: ``end`` and ``pace`` in agent steps, ``metric``; ``waits``, a file below the sweep that is waited for before the end; ``refuses``: it cannot go on from
a checkpoint. Each life leaves a file that says where it ended, such as ``trial-0001.left-2000``.
"""

import json
import sys
import time
from pathlib import Path

from ray import tune

from raytrain.cli import main
from raytrain.cluster import tuning
from raytrain.errors import RunFolderError
from raytrain.sweep_folder import STOP


class FakeTrial(tune.Trainable):
    def setup(self, config):
        self.folder, self.steps = Path(config["sweep"]["folder"]), 0
        self.plan = json.loads((self.folder.parents[1] / "plan.json").read_text())[self.trial_name]

    def step(self):
        time.sleep(0.02)
        at_end = self.steps >= self.plan["end"]
        while at_end and "waits" in self.plan and not (self.folder / self.plan["waits"]).exists():
            time.sleep(0.02)
        ended = "interrupted" if (self.folder / STOP).exists() else "finished" if at_end else ""
        self.steps += 0 if ended else self.plan["pace"]
        return {"agent_steps": self.steps, "metric": self.plan["metric"], **({"done": True, "ended": ended} if ended else {})}

    def save_checkpoint(self, checkpoint_dir):
        (Path(checkpoint_dir) / "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint_dir):
        if self.plan.get("refuses"):
            raise RunFolderError("no place here")
        self.steps = int((Path(checkpoint_dir) / "steps").read_text())

    def cleanup(self):
        (self.folder / f"{self.trial_name}.left-{self.steps}").touch()


if __name__ == "__main__":
    tuning.Trainable = FakeTrial
    sys.exit(main(["tune", *sys.argv[1:]]))
