"""For tests of one's own: the contract that every store has to keep.

```python
from turnlog.testing import StoreContract

class TestMyStore(StoreContract):
    def make_store(self, place):
        return MyStore(place)
```

Needs pytest, which `turnlog` itself does not.
"""

import pytest

# So that a clause which does not hold shows the values that it compared.
pytest.register_assert_rewrite("turnlog.testing.contract")

from turnlog.testing.contract import FailingAppend, PlainAppend, StoreContract, line_of  # noqa: E402

__all__ = ["FailingAppend", "PlainAppend", "StoreContract", "line_of"]
