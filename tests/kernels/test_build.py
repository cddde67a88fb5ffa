import os

import pytest

from condens.kernels import native


@pytest.mark.skipif("CI" not in os.environ, reason="elsewhere there may be no compiler")
def test_the_native_kernel_is_built():
    # Without it half of the tests would be skipped silently.
    assert not native.missing
