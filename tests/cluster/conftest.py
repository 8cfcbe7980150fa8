"""Every test below starts Ray: the whole folder is the ``cluster`` tier."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def private_ray():
    """A private Ray of this module, with room for the actors of the tests."""
    from raytrain import cluster

    connection = cluster.connect(None)
    yield connection
    cluster.disconnect(connection)
