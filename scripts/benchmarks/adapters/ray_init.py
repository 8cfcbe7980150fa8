"""How long a bare ``ray.init`` takes on this machine: what anything over Ray waits for at least."""

from __future__ import annotations

import time

import metered


def main() -> None:
    import ray

    began_s = time.perf_counter()
    ray.init(address="local", log_to_driver=False)
    metered.info(lib="ray", version=ray.__version__, ray_init_s=round(time.perf_counter() - began_s, 3))
    ray.shutdown()


if __name__ == "__main__":
    main()
