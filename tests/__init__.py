import pytest

pytest.register_assert_rewrite("tests.kit")  # what fails there shows its values too
