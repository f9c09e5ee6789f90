"""The tasks: functions that run in workers and use Django's models. `holdfast dev tasks.py` runs them."""

import os
from collections import Counter
from datetime import timedelta

import django
from django.apps import apps
from django.db import connection, transaction

from holdfast import Ctx, task

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
if not apps.ready and not apps.loading:  # in a worker; the web application has set up Django already
    django.setup()


@task(queue="notes", retries=3, timeout=timedelta(minutes=1))
def count_words(ctx: Ctx, note_id: int) -> dict[str, int]:
    """Count how often each word of a note occurs. A plain function runs in a thread of the worker."""
    from notes.models import Note

    try:
        with transaction.atomic():
            note = Note.objects.select_for_update().get(pk=note_id)
            note.words = dict(Counter(note.text.lower().split()))
            note.save(update_fields=["words"])
        ctx.progress(1, 1, phase="counted")
        return note.words
    finally:
        connection.close()  # Django opens one connection per thread
