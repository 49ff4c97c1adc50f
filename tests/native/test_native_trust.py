"""Compiled code is loaded only from where no other user may have put it; else Python does the work, with a note."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

import memwatch
from memwatch import build_cache
from memwatch.errors import MemwatchError
from memwatch.planner.native import library as kernels
from memwatch.record.native import library

OTHER_USER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use a folder of our own with the libraries as the cache, in a process that has printed no hint yet."""
    built = [each.path() for each in (library, kernels)]
    if not all(path.exists() for path in built):
        pytest.skip("not built: `memwatch build`")
    folder = tmp_path / "above" / "cache"
    folder.mkdir(parents=True, mode=0o755)
    for path in built:
        shutil.copy(path, folder)
    monkeypatch.setattr(library, "_remarks_made", [])
    monkeypatch.setenv(build_cache.VARIABLE, str(folder))
    return folder


def give_away(path):
    os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)


def by_a_link(cache):
    """Have a folder above be a link that another user made."""
    cache.parent.rename(cache.parent.with_name("real"))
    cache.parent.symlink_to(cache.parent.with_name("real"))
    give_away(cache.parent)


def by_links_through_a_shared_folder(cache):
    """Have a link lead to a link in a folder of everybody, which leads to the user's files."""
    shared, real = cache.parent.with_name("shared"), cache.parent.with_name("real")
    cache.parent.rename(real)
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(real)
    cache.parent.symlink_to(shared / "link")


WRITABLE = {
    "the file": lambda cache: [path.chmod(0o777) for path in cache.iterdir()],
    "the folder": lambda cache: cache.chmod(0o777),
    "the folder above": lambda cache: cache.parent.chmod(0o777),
    "a folder between links": by_links_through_a_shared_folder,
}
OF_ANOTHER = {
    "the file": lambda cache: [give_away(path) for path in cache.iterdir()],
    "the file in a sticky folder": lambda cache: (
        cache.chmod(0o1777), [give_away(path) for path in cache.iterdir()],
    ),
    "the folder": give_away,
    "the folder above": lambda cache: give_away(cache.parent),
    "a link on the way": by_a_link,
}  # fmt: skip


def notes_of_a_recording():
    with memwatch.profile() as prof:
        torch.ones(3)
    return prof.capture.meta["recorder"], [text for kind, text in prof.notes if kind == "recorder"]


def assert_not_loaded(why):
    recorder, notes = notes_of_a_recording()
    assert recorder == "python"
    (note,) = notes
    assert "was not loaded" in note
    assert why in note
    assert "MEMWATCH_CACHE" in note
    assert kernels.reason_to_distrust()
    assert not library.is_built()


@pytest.mark.parametrize("where", WRITABLE)
def test_what_everybody_may_write_is_not_loaded(where, cache):
    WRITABLE[where](cache)
    assert_not_loaded("other users may write to")


@as_root
@pytest.mark.parametrize("where", OF_ANOTHER)
def test_what_another_user_owns_is_not_loaded(where, cache):
    OF_ANOTHER[where](cache)
    assert_not_loaded("belongs to another user")


@as_root
def test_what_a_group_of_several_may_write_is_not_loaded(cache):
    os.chown(cache, -1, OTHER_USER)
    cache.chmod(0o775)
    assert_not_loaded("other users may write to")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o2755])
def test_what_is_ours_alone_is_loaded(mode, cache):
    """In a folder such as /tmp too, where users cannot rename the files of others."""
    cache.chmod(mode)
    assert notes_of_a_recording() == ("native", [])
    assert kernels.reason_to_distrust() == ""


def test_a_folder_of_the_user_s_own_group_is_trusted(cache):
    """Many systems have a group for each user and a umask of 002."""
    import grp
    import pwd

    user = pwd.getpwuid(os.geteuid())
    if grp.getgrgid(user.pw_gid).gr_name != user.pw_name or set(grp.getgrgid(user.pw_gid).gr_mem) - {
        user.pw_name
    }:
        pytest.skip("this user has no group of their own")
    os.chown(cache, -1, user.pw_gid)
    cache.chmod(0o775)
    assert notes_of_a_recording() == ("native", [])


@pytest.mark.parametrize("part", [library, kernels])
def test_nothing_is_built_where_others_may_write(part, cache, monkeypatch):
    """A library in such a folder would not be loaded. The error gives the next step."""
    for path in cache.iterdir():
        path.unlink()
    cache.chmod(0o777)
    monkeypatch.setattr(library, "_compile", lambda folder: pytest.fail("compiled first"))
    with pytest.raises(MemwatchError, match=r"was not built: other users may write to .* MEMWATCH_CACHE"):
        part.build()
    assert list(cache.iterdir()) == []


def test_a_library_is_put_without_following_a_link(cache, tmp_path):
    """A link with the name of the library, or of anything that is written on the way, leads nowhere."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "made").write_text("library")
    target = cache / "x.so"
    target.symlink_to(tmp_path / "victim")
    before = os.umask(0o002)
    try:
        build_cache.put(tmp_path / "made", target)
    finally:
        os.umask(before)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (target.read_text(), target.is_symlink()) == ("library", False)
    assert build_cache.reason_to_distrust(target) == ""


def test_folders_are_made_so_that_they_are_trusted(tmp_path, monkeypatch):
    """With a umask of 000 too."""
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "a" / "b" / "c"))
    before = os.umask(0)
    try:
        build_cache.require_writable("x", "y")
    finally:
        os.umask(before)
    assert build_cache.reason_to_distrust(tmp_path / "a" / "b" / "c") == ""
