"""What can go wrong with an object store.

ObjectStoreError
  ObjectNotFound    (NotFound)           no object has that key
  InvalidKey        (InvalidArgument)    the key is not one of ours
  BadRange          (InvalidArgument)    the range starts beyond the object's end
  StoreFull         (ResourceExhausted)  no room: disk full, quota, file size limit
  ReadOnly          (PermissionDenied)   the folder cannot be written
  AccessDenied      (PermissionDenied)   the credentials do not allow it
  StoreUnavailable  (Unavailable)        no answer, or none that makes sense; may be retried
"""

from __future__ import annotations

import errno
import re

from obstore import exceptions as obstore_errors

from libs import errors


class ObjectStoreError(errors.ImpalaError):
    """Base of all errors of this package."""


class ObjectNotFound(ObjectStoreError, errors.NotFound):
    def __init__(self, key: str) -> None:
        super().__init__(f"There is no object '{key}'.", "OBJECT_NOT_FOUND")


class InvalidKey(ObjectStoreError, errors.InvalidArgument):
    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"The object key {key[:200]!r} is not allowed: {why}.", "INVALID_KEY")


class BadRange(ObjectStoreError, errors.InvalidArgument):
    def __init__(self, key: str, start: int, size: int) -> None:
        message = f"Byte {start} of '{key}' does not exist: the object has {size} bytes."
        super().__init__(message, "BAD_RANGE")


class StoreFull(ObjectStoreError, errors.ResourceExhausted):
    def __init__(self, where: str) -> None:
        message = f"The object store at {where} is full: free some space and try again."
        super().__init__(message, "STORE_FULL")


class ReadOnly(ObjectStoreError, errors.PermissionDenied):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"The object store at {where} cannot be written: {why}.", "READ_ONLY")


class AccessDenied(ObjectStoreError, errors.PermissionDenied):
    def __init__(self, where: str) -> None:
        message = f"The object store at {where} refused the credentials: check keys and policy."
        super().__init__(message, "ACCESS_DENIED")


class StoreUnavailable(ObjectStoreError, errors.Unavailable):
    def __init__(self, where: str, why: str) -> None:
        message = f"The object store at {where} does not answer properly: {why}."
        super().__init__(message, "STORE_UNAVAILABLE", None, 1.0)
        self.why = why


PASSING = (StoreFull, ReadOnly, AccessDenied, StoreUnavailable)
"""Those that end without the caller's doing: the store comes back, or an operator frees space or
gives access. Who must go on waits for that; who has a client says "come back"."""
PASSING_REASONS = frozenset({"STORE_FULL", "READ_ONLY", "ACCESS_DENIED", "STORE_UNAVAILABLE"})
"""Of the same, as another process tells them."""

STORE_FAULTS = (obstore_errors.BaseError, OSError)
"""What a call of obstore may raise, for `except`."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def from_os(error: OSError, where: str, key: str) -> ObjectStoreError:
    """The tree's error for an operating system error on a local folder."""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(where)
    if error.errno in _READ_ONLY:
        return ReadOnly(where, why)
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return InvalidKey(key, "another object's key is a folder of it, or it is a folder itself")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidKey(key, "it is too long for the file system")
    return StoreUnavailable(where, why)


def folder_gone(where: str) -> StoreUnavailable:
    """Nothing can be told of its objects, least of all that they do not exist."""
    return StoreUnavailable(where, "its folder is not there, or something else is in its place")


def from_obstore(error: Exception, where: str, key: str) -> ObjectStoreError:
    """The tree's error for what obstore raised; its debug dump is cut off."""
    if isinstance(error, ObjectStoreError):
        return error
    if isinstance(error, FileNotFoundError | obstore_errors.NotFoundError):
        return ObjectNotFound(key)
    if isinstance(
        error,
        PermissionError
        | obstore_errors.PermissionDeniedError
        | obstore_errors.UnauthenticatedError,
    ):
        return AccessDenied(where)
    text = str(error)
    if "403 Forbidden" in text or "401 Unauthorized" in text:  # of a listing
        return AccessDenied(where)
    if "(os error 20)" in text:  # ENOTDIR: a parent of the key is an object, so this is none.
        return ObjectNotFound(key)
    return StoreUnavailable(where, _why(text))


def _why(text: str) -> str:
    """The end of the chain of causes in obstore's message, and the store's own word for it."""
    shown, _, _ = text.partition("\n\nDebug source")
    cause = shown.strip().split("\n", 1)[0].rsplit(" - ", 1)[-1].partition("<")[0].rstrip(".: ")
    code = re.search(r"<Code>(\w+)</Code>", shown)
    return f"{cause[:300]} ({code[1]})" if code else cause[:300]
