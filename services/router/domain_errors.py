"""What the router refuses, beyond malformed requests.

libs.errors.NotFound
  NoSuchFile, NoSuchBatch, NoSuchJob, NoSuchRun, NoSuchModel
libs.errors.FailedPrecondition
  FileInUse        a batch that is not terminal refers to the file
  JobInUse         a batch that is not terminal runs on the job
  BatchEnded       a cancel came after the end
  ResultsReleased  the batch ended long ago: its results are read from its files
libs.errors.AlreadyExists
  IdempotencyKeyReused  the key has made something else
libs.errors.Unavailable
  NoServer         no live server of the model
  ServerLost       the server that ran the step broke, or the way to it did
libs.errors.DataLoss
  ResultsLost      recorded lines of a run cannot be read
  FileDamaged      a file's content is not what was stored
"""

from __future__ import annotations

from libs import errors


class NoSuchFile(errors.NotFound):
    def __init__(self, file_id: str, field: str | None = "id") -> None:
        super().__init__(f"No such File object: {file_id[:200]}", "FILE_NOT_FOUND", field)


class NoSuchBatch(errors.NotFound):
    def __init__(self, batch_id: str) -> None:
        super().__init__(f"No batch found with id '{batch_id[:200]}'.", "BATCH_NOT_FOUND", "id")


class NoSuchJob(errors.NotFound):
    def __init__(self, job_id: str, field: str = "id") -> None:
        super().__init__(f"No job found with id '{job_id[:200]}'.", "JOB_NOT_FOUND", field)


class NoSuchRun(errors.NotFound):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"No run found with id '{run_id[:200]}'.", "RUN_NOT_FOUND", "id")


class NoSuchModel(errors.NotFound):
    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{model[:200]}' does not exist or you do not have access to it.",
            "MODEL_NOT_FOUND",
            "model",
        )


class FileInUse(errors.FailedPrecondition):
    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(
            f"The file {file_id} is in use by the batch {batch_id}: cancel it or wait for its end.",
            "FILE_IN_USE",
            "id",
        )


class JobInUse(errors.FailedPrecondition):
    def __init__(self, job_id: str, batch_id: str) -> None:
        super().__init__(
            f"The job {job_id} is in use by the batch {batch_id}: cancel it or wait for its end.",
            "JOB_IN_USE",
            "id",
        )


class BatchEnded(errors.FailedPrecondition):
    def __init__(self, status: str) -> None:
        super().__init__(f"Cannot cancel a batch with status '{status}'.", "BATCH_ENDED", "id")


class ResultsReleased(errors.FailedPrecondition):
    def __init__(self, output_file_id: str | None, error_file_id: str | None) -> None:
        files = " and ".join(each for each in (output_file_id, error_file_id) if each)
        message = (
            "The batch ended too long ago for its results to be read from that line on: read them "
            f"from the first one on, or its files ({files or 'none'})."
        )
        super().__init__(message, "RESULTS_RELEASED", "after")
        self.files = (output_file_id, error_file_id)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.files


class IdempotencyKeyReused(errors.AlreadyExists):
    def __init__(self) -> None:
        super().__init__(
            "The Idempotency-Key was used for a different request within the last day: "
            "take a new key, or send the same request again.",
            "IDEMPOTENCY_KEY_REUSED",
            "Idempotency-Key",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()


class NoServer(errors.Unavailable):
    def __init__(self, model: str, retry_after_s: float | None = None) -> None:
        message = (
            f"No server of the model '{model}' is up now: try again soon. One that is started "
            "again answers once it has loaded the model."
        )
        super().__init__(message, "NO_SERVERS", None, retry_after_s or 1.0)


class ServerLost(errors.Unavailable):
    """The step was with the server: others may run it, unless it is why the server broke."""

    def __init__(self, retry_after_s: float | None) -> None:
        message = "The model server was lost while it ran this request."
        super().__init__(message, "SERVER_LOST", None, retry_after_s)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.retry_after_s,), dict(self.__dict__)


class ResultsLost(errors.DataLoss):
    def __init__(self) -> None:
        message = (
            "A part of the run's recorded results is lost or damaged; what the batch's output file "
            "has at its end is all there is."
        )
        super().__init__(message, "RESULTS_LOST")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()


class FileDamaged(errors.DataLoss):
    def __init__(self, file_id: str) -> None:
        message = f"The content of the file {file_id} is damaged: it is not what was stored."
        super().__init__(message, "FILE_DAMAGED")
