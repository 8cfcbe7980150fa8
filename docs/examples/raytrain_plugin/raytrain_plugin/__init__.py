"""An example of a package that gives raytrain a trainer, a reward signal, a network and a sampler: see pyproject.toml."""
