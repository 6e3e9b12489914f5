"""What is kept says by which code it was made."""

import meshscope
from meshscope.analyze.tables.source_code import DERIVING, code_version


def test_another_source_is_another_version_wherever_it_lies(tmp_path, monkeypatch):
    """Fails when an upgrade is not noticed, or the same program in another place is taken for one."""
    found = []
    for place, text in (("one", "A = 1"), ("other", "A = 1"), ("changed", "A = 2")):
        (tmp_path / place / "read").mkdir(parents=True)
        (tmp_path / place / "read" / "a.py").write_text(text)
        monkeypatch.setattr(meshscope, "__file__", str(tmp_path / place / "__init__.py"))
        code_version.cache_clear()
        found.append(code_version(("read",)))
    code_version.cache_clear()
    assert found[0] == found[1] != found[2]


def test_the_version_depends_on_the_readers():
    """Fails when the folders of the readers are named wrongly: nothing would be stale then."""
    assert len({code_version(()), code_version(DERIVING[:1]), code_version(DERIVING)}) == 3
