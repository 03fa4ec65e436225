"""What the routes of files and batches answer, for the API document, and how output is written."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from twostroke.server.batches.message_objects import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchPage,
    MessageBatchResult,
    MessagesOutput,
)
from twostroke.server.batches.openai_objects import BatchList, BatchObject, OpenAIOutput
from twostroke.server.batches.record import Api
from twostroke.server.batches.run import OutputForm
from twostroke.server.files.answers import DeletedFile, FileList, FileObject

BATCH_ANSWERS: tuple[type[Struct], ...] = (
    FileObject,
    FileList,
    DeletedFile,
    BatchObject,
    BatchList,
    MessageBatch,
    MessageBatchPage,
    MessageBatchResult,
    DeletedMessageBatch,
)
OUTPUT_FORMS: Mapping[Api, OutputForm] = {"openai": OpenAIOutput(), "messages": MessagesOutput()}
