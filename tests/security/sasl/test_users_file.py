"""The file with users for PLAIN. Covers: kafkawire.security.principals."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.security.sasl.users_file import UsersFile, UsersFileError


def written(path: Path, text: str, mode: int = 0o600) -> str:
    file = path / "users"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_users_and_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, "# people\nalice:se:cret\n\nbob:b\n")
    users = UsersFile(path)
    assert users.users == {"alice": "se:cret", "bob": "b"}
    first = users.users
    users.reload()
    assert users.users is first
    written(tmp_path, "alice:new\n")
    users.reload()
    assert users.users == {"alice": "new"}
    written(tmp_path, "alice")
    users.reload()
    assert users.users == {"alice": "new"}
    Path(path).unlink()
    users.reload()
    assert users.users == {"alice": "new"}
    assert "line 1 is not name:password" in caplog.text
    assert "se:cret" not in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsersFileError, match="chmod 600"):
        UsersFile(written(tmp_path, "alice:x\n", mode))


@pytest.mark.parametrize("text", ["x", "a:", ":x", "*:x", "a\tb:x", "a:x\na:y", "x" * 256 + ":y"])
def test_invalid_lines_are_named_without_passwords(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsersFileError, match="line"):
        UsersFile(written(tmp_path, text))


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsersFileError, match="cannot be read"):
        UsersFile(str(tmp_path / "absent"))
    (tmp_path / "users").write_bytes(b"\xff:x")
    (tmp_path / "users").chmod(0o600)
    with pytest.raises(UsersFileError, match="UTF-8"):
        UsersFile(str(tmp_path / "users"))
