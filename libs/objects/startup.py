"""Whether a store can be used as it was configured: found out at a service's start, and told in one
sentence that names the setting, not with the first request of a user.
"""

from __future__ import annotations

import logging
from urllib.parse import urlsplit
from uuid import uuid4

from libs.clock import Clock
from libs.errors import StartupError
from libs.objects.errors import AccessDenied, ObjectNotFound, ObjectStoreError, StoreUnavailable
from libs.objects.store import ENDPOINT_SETTINGS, ObjectStore

log = logging.getLogger(__name__)

RETRY_S = 1.0
PROBES = "probes"
"""Folder of the objects that a check writes, and removes."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_REGION_SIGNS = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IncorrectEndpoint")
_NO_KEY_SIGNS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "redential")


async def check_store(store: ObjectStore, clock: Clock, patience_s: float = 10.0) -> None:
    """Lists, writes an object, and sees that it cannot be created again. What does not answer is
    asked again for `patience_s`. Raises StartupError."""
    if urlsplit(store.url).scheme in ("file", "memory"):
        return
    deadline = clock.now() + patience_s
    while True:
        try:
            await _try(store)
            return
        except ObjectStoreError as error:
            why, final = _explain(store, error)
            if final or clock.now() >= deadline:
                raise StartupError(why) from error
            log.warning("the object store cannot be used yet", extra={"why": why})
        await clock.sleep(RETRY_S)


async def _try(store: ObjectStore) -> None:
    await store.list(PROBES, limit=1)
    key = f"{PROBES}/{uuid4().hex}"
    await store.put_if_absent(key, b"1")
    created_twice = await store.put_if_absent(key, b"2")
    await store.delete(key)
    if created_twice:
        raise StartupError(
            f"The object store {store.url} (--objects) does not know conditional writes "
            "(If-None-Match): use one that does."
        )


def _explain(store: ObjectStore, error: ObjectStoreError) -> tuple[str, bool]:
    """What to tell, and whether waiting cannot mend it."""
    scheme, bucket = urlsplit(store.url)[:2]
    what = f"The object store {store.url} (--objects)"
    credentials = _CREDENTIALS.get(scheme, "its credentials")
    cause = f"{error} {error.__cause__ or ''}"
    if "RequestTimeTooSkewed" in cause:
        return f"{what} has another time than this machine: set its clock.", True
    if isinstance(error, AccessDenied):
        return f"{what} refused the credentials: check {credentials}, and the policy.", True
    if isinstance(error, ObjectNotFound) or "bucket does not exist" in cause:
        where = f" at {store.endpoint}" if store.endpoint else ""
        return f"{what} has no bucket '{bucket}'{where}: create it, or name another.", True
    if any(sign in cause for sign in _REGION_SIGNS):
        return f"{what} is in another region: set AWS_REGION to the bucket's.", True
    if any(sign in cause for sign in _NO_KEY_SIGNS):
        return f"{what} cannot be asked without credentials: set {credentials}.", False
    why = error.why if isinstance(error, StoreUnavailable) else error.message.rstrip(".")
    if store.endpoint:
        return (
            f"{what} does not answer properly at {store.endpoint}: check {ENDPOINT_SETTINGS[0]} "
            f"and the network ({why}).",
            False,
        )
    return f"{what} does not answer properly: check the URL and the network ({why}).", False
