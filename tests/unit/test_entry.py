"""What the command ``meshscope`` does before it is loaded."""

import os
import subprocess
import sys


def test_ctrl_c_while_the_command_loads_shows_no_traceback(tmp_path):
    """Whoever thinks better of a command at once would be shown thirty lines of its insides."""
    (tmp_path / "typer.py").write_text("import _thread\n_thread.interrupt_main()\n")
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from meshscope.entry import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert (ended.returncode, ended.stderr) == (130, "")
