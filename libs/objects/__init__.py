"""Objects by key in a local folder, S3, GCS, Azure or memory, behind one asynchronous interface."""

from libs.objects.digest import Digest, digest_of, fits
from libs.objects.errors import (
    AccessDenied,
    BadRange,
    InvalidKey,
    ObjectNotFound,
    ObjectStoreError,
    ReadOnly,
    StoreFull,
    StoreUnavailable,
)
from libs.objects.keys import check_key
from libs.objects.startup import check_store
from libs.objects.store import ObjectInfo, ObjectStore, ObjectWriter, open_store

__all__ = [
    "AccessDenied",
    "BadRange",
    "Digest",
    "InvalidKey",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "ObjectStoreError",
    "ObjectWriter",
    "ReadOnly",
    "StoreFull",
    "StoreUnavailable",
    "check_key",
    "check_store",
    "digest_of",
    "fits",
    "open_store",
]
