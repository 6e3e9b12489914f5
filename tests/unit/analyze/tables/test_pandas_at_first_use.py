"""pandas is there as soon as it is used, and Arrow knows its classes then."""

import subprocess
import sys

import pyarrow as pa
import pytest

_BEGIN = """
import sys
from meshscope.analyze.tables.pandas_at_first_use import pandas_at_first_use
pandas_at_first_use()
import pandas as pd
import pyarrow as pa
def is_loaded():
    return "pandas.core.frame" in sys.modules
"""


def _run(code):
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 18, reason="Arrow 17 looks for pandas anew with each array"
)
@pytest.mark.parametrize(
    "use",
    [
        "import numpy as np; pa.array(np.arange(3)); pa.scalar(3); pa.array(['a', None])",
        "pa.array([1, 2]).to_numpy(); pa.table({'a': [1]}).to_pylist()",
        "import pandas",
    ],
)
def test_arrow_alone_loads_nothing(use):
    """Fails when the first array of Arrow loads pandas, so that nothing is saved."""
    _run(f"{use}\nassert not is_loaded()")


@pytest.mark.parametrize(
    "use",
    [
        "assert pa.array(pd.Series([1, None], dtype='Int64')).to_pylist() == [1, None]",
        "assert pa.table({'a': [1]}).to_pandas()['a'].tolist() == [1]",
        "from pandas.api.types import is_integer_dtype\nassert is_integer_dtype('int64')",
        "from pandas import DataFrame\nassert len(DataFrame({'a': [1]})) == 1",
        "import pandas.core.frame\nassert pandas.DataFrame is pandas.core.frame.DataFrame",
        "frame = pd.DataFrame({'a': pd.Categorical(['x'])})\n"
        "table = pa.Table.from_pandas(frame, preserve_index=False)\n"
        "assert pa.types.is_dictionary(table['a'].type)",
    ],
)
def test_any_use_loads_it_whole(use):
    """Fails when pandas is half there, or Arrow does not know a series for one."""
    _run(f"{use}\nassert is_loaded()")


def test_a_name_that_pandas_lacks_is_an_attribute_error():
    """Fails when a slip in a name shows as something else, or loads pandas for ever."""
    _run(
        "try:\n    pd.no_such_name\nexcept AttributeError as error:\n    assert 'no_such' in str(error)\n"
        "else:\n    raise AssertionError"
    )


def test_two_threads_get_the_same_pandas():
    """Fails when a thread sees a package that another one is still loading."""
    _run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    frames = list(pool.map(lambda n: len(pd.DataFrame({'a': range(n)})), range(8)))\n"
        "assert frames == list(range(8))"
    )
